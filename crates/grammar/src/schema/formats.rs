//! The formats that are enforced, as patterns of whole strings.
//!
//! Sources: RFC 3339 (dates, times and durations; without leap seconds, which most libraries refuse), RFC 4122 (uuid), RFC 5321
//! 4.1.2 (email, without quoted names), RFC 1123 (hostname), RFC 4291 2.2 (ipv6, without an IPv4 tail), RFC 3986 (uri).

/// Years with a 29 February: divisible by 4, and by 400 if by 100.
const LEAP_YEAR: &str =
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)";
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const LABEL: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const WORD: &str = "[0-9A-Fa-f]{1,4}";
/// A character of a path.
const PATH: &str = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

/// A pattern for a format, anchored at both ends; `None` if it is not one that is known here.
pub(super) fn pattern(format: &str) -> Option<String> {
    let body = match format {
        "date" => date(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{}T{TIME}", date()),
        "duration" => duration(),
        "uuid" => {
            "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}".to_owned()
        }
        "email" => {
            let atom = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
            format!(r"{atom}(?:\.{atom})*@{LABEL}(?:\.{LABEL})*")
        }
        "hostname" => format!(r"{LABEL}(?:\.{LABEL}){{0,7}}"),
        "ipv4" => format!(r"{OCTET}(?:\.{OCTET}){{3}}"),
        "ipv6" => ipv6(),
        "uri" => uri(),
        _ => return None,
    };
    Some(format!("^(?:{body})$"))
}

fn date() -> String {
    let year = "[0-9]{4}";
    format!(
        "(?:{year}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))\
         |{LEAP_YEAR}-02-29)"
    )
}

/// Weeks alone; or years, months and days, then hours, minutes and seconds, of which something must be there.
fn duration() -> String {
    let time = "T(?:[0-9]+H(?:[0-9]+M)?(?:[0-9]+S)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
    let date = "(?:[0-9]+Y(?:[0-9]+M)?(?:[0-9]+D)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
    format!("P(?:[0-9]+W|{date}(?:{time})?|{time})")
}

/// Eight words; or fewer, with `::` in one place.
fn ipv6() -> String {
    let mut forms = vec![format!("(?:{WORD}:){{7}}{WORD}")];
    for before in 0..=7usize {
        let most_after = 7 - before;
        let head = match before {
            0 => String::new(),
            _ => format!("{WORD}(?::{WORD}){{{}}}", before - 1),
        };
        let tail = match most_after {
            0 => String::new(),
            _ => format!("(?:{WORD}(?::{WORD}){{0,{}}})?", most_after - 1),
        };
        forms.push(format!("{head}::{tail}"));
    }
    forms.join("|")
}

/// With an authority, or a path that begins with a segment.
fn uri() -> String {
    let host = format!(r"(?:{LABEL}(?:\.{LABEL})*)(?::[0-9]{{1,5}})?");
    let tail = format!(r"(?:\?(?:{PATH}|[/?])*)?(?:#(?:{PATH}|[/?])*)?");
    format!("[A-Za-z][A-Za-z0-9+.-]*:(?://{host}(?:/{PATH}*)*|{PATH}+(?:/{PATH}*)*){tail}")
}
