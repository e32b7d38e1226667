//! Numbers as a report writes them.

/// `1,214`.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 tensor`, `1,214 tensors`.
pub(super) fn counted(n: usize, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(n as u64))
}

/// `21.5 MB`: powers of 1000, as disks are sold.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if n < 1000 {
        return format!("{n} bytes");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 999.95 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_bytes_have_units() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(thousands(n), text);
        }
        for (n, text) in [
            (17, "17 bytes"),
            (21_532_544, "21.5 MB"),
            (999_960, "1.0 MB"),
            (450_000_000_000, "450.0 GB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(
            (counted(1, "tensor"), counted(2, "tensor")),
            ("1 tensor".into(), "2 tensors".into())
        );
    }
}
