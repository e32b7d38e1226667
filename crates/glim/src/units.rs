//! Numbers as people read them.

/// `20.5 MiB`; below 1 KiB in bytes.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    scaled(n, 1024.0, &UNITS)
}

/// `20.1 M`; below 1000 as it is.
pub(crate) fn count(n: u64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "B", "T"];
    scaled(n, 1000.0, &UNITS).trim_end().to_owned()
}

/// `31 s`, `1 min 30 s`, `2 h 5 min`.
pub(crate) fn duration(time: std::time::Duration) -> String {
    match time.as_secs() {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

fn scaled(n: u64, step: f64, units: &[&str]) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    // What would round to a whole step belongs to the next unit.
    while value >= step - 0.05 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    match unit {
        0 => format!("{n} {}", units[0]),
        _ => format!("{value:.1} {}", units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        let texts = [0, 59, 90, 7500].map(|s| duration(std::time::Duration::from_secs(s)));
        assert_eq!(texts, ["0 s", "59 s", "1 min 30 s", "2 h 5 min"]);
    }

    #[test]
    fn units_change_where_the_number_would_have_four_digits() {
        assert_eq!(
            [0, 1023, 1024, 21_532_544].map(bytes),
            ["0 bytes", "1023 bytes", "1.0 KiB", "20.5 MiB"]
        );
        assert_eq!(
            [999, 1000, 999_990, 20_057_088].map(count),
            ["999", "1.0 k", "1.0 M", "20.1 M"]
        );
        assert_eq!(count(744_000_000_000), "744.0 B");
    }
}
