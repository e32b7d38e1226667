//! `strftime_now`: the directives of C's `strftime` that chat templates use, in UTC and English.
//!
//! Python uses the machine's local time; a server has no better claim than UTC. The calendar arithmetic is Howard
//! Hinnant's `civil_from_days` (<https://howardhinnant.github.io/date_algorithms.html>).

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// Formats a Unix time (seconds); `Err` holds the first directive that is not known.
pub(super) fn utc(format: &str, unix_seconds: u64) -> Result<String, char> {
    let (days, second_of_day) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (hour, minute, second) = (
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    );
    let (year, month, day) = civil_from_days(days);
    // 1970-01-01 was a Thursday.
    let weekday = DAYS[(days % 7 + 3) as usize % 7];
    let month_name = MONTHS[month as usize - 1];
    let day_of_year = days - days_before_year(year) + 1;
    let hour12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next().unwrap_or('%');
        // `%-d` is glibc's "without padding".
        let (padded, directive) = if directive == '-' {
            (false, chars.next().unwrap_or('-'))
        } else {
            (true, directive)
        };
        let number = |value: u64, width: usize| {
            if padded {
                format!("{value:0width$}")
            } else {
                value.to_string()
            }
        };
        out.push_str(&match directive {
            'Y' => year.to_string(),
            'y' => number(year % 100, 2),
            'm' => number(month, 2),
            'd' => number(day, 2),
            'j' => number(day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month_name.to_owned(),
            'b' => month_name[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            other => return Err(other),
        });
    }
    Ok(out)
}

/// (year, month 1–12, day 1–31) of a number of days since 1970-01-01.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// Days from 1970-01-01 to January 1st of `year`.
fn days_before_year(year: u64) -> u64 {
    let leap_days = |year: u64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    (year - 1970) * 365 + leap_days(year) - leap_days(1970)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 Thursday 001 00:00:00"),
            (951_782_400, "2000-02-29 Tuesday 060 00:00:00"),
            (1_709_164_799, "2024-02-28 Wednesday 059 23:59:59"),
            (1_798_761_599, "2026-12-31 Thursday 365 23:59:59"),
        ] {
            assert_eq!(utc("%Y-%m-%d %A %j %H:%M:%S", seconds).as_deref(), Ok(text));
        }
        assert_eq!(
            utc("%-d %b %y %I%p 100%%", 1_709_164_799).as_deref(),
            Ok("28 Feb 24 11PM 100%")
        );
        assert_eq!(utc("%Q", 0), Err('Q'));
    }
}
