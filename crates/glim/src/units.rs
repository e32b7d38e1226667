//! Numbers as people read and write them.

use std::ops::RangeInclusive;

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

/// Reads seconds: `90`, `90s`, `5m`, `2h`; for values of options, within `range`.
pub(crate) fn seconds(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let (number, unit) = match text.char_indices().next_back() {
            Some((at, 's')) => (&text[..at], 1),
            Some((at, 'm')) => (&text[..at], 60),
            Some((at, 'h')) => (&text[..at], 3600),
            _ => (text, 1),
        };
        let seconds = number.parse::<u64>().ok();
        let seconds = seconds.and_then(|n| n.checked_mul(unit));
        let (least, most) = (range.start(), range.end());
        seconds
            .filter(|n| range.contains(n))
            .ok_or_else(|| format!("expected {least} to {most} seconds, as 90, 90s, 5m or 2h"))
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
    fn seconds_may_have_a_unit_and_are_held_to_their_range() {
        let read = seconds(1..=7200);
        let texts = ["1", "90s", "5m", "2h"].map(&read);
        assert_eq!(texts, [1, 90, 300, 7200].map(Ok));
        for wrong in [
            "",
            "s",
            "0",
            "2h1",
            "3h",
            "-1",
            "1.5m",
            "99999999999999999999h",
        ] {
            let error = "expected 1 to 7200 seconds, as 90, 90s, 5m or 2h".to_owned();
            assert_eq!(read(wrong), Err(error), "{wrong}");
        }
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
