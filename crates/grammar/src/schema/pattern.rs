//! Regular expressions of JSON schema (ECMA-262) in the syntax of Rust's `regex`, as far as both mean the same.
//!
//! What means something else there is rewritten (`[` within a class, `[^]`, named groups), what has no automaton is refused by
//! name (look-around, back-references, word boundaries). `\d` and `\w` are ASCII in JSON schema; llguidance sees to that.

/// The expression in Rust's syntax, or why not.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    if pattern.len() > crate::MAX_REGEX_BYTES {
        return Err(format!(
            "it is longer than {} bytes",
            crate::MAX_REGEX_BYTES
        ));
    }
    let mut out = String::new();
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = after;
        match (in_class, c) {
            (_, '\\') => rest = escape(after, &mut out)?,
            (false, '(') => rest = group(after, &mut out)?,
            (false, '[') => {
                if let Some(after) = after.strip_prefix("^]") {
                    out.push_str(r"[\s\S]");
                    rest = after;
                } else if after.starts_with(']') {
                    return Err("`[]` matches nothing".to_owned());
                } else {
                    in_class = true;
                    out.push('[');
                    if let Some(after) = after.strip_prefix('^') {
                        out.push('^');
                        rest = after;
                    }
                }
            }
            (true, ']') => {
                in_class = false;
                out.push(']');
            }
            (true, '-') if after.starts_with('-') => {
                return Err("`--` within a class means different things".to_owned());
            }
            // Rust has classes within classes, and operators on them.
            (true, '[' | '&' | '~') => {
                out.push('\\');
                out.push(c);
            }
            (_, c) => out.push(c),
        }
    }
    if in_class {
        return Err("a `[` has no `]`".to_owned());
    }
    Ok(out)
}

/// What follows a backslash. Returns what is left.
fn escape<'a>(rest: &'a str, out: &mut String) -> Result<&'a str, String> {
    let c = rest.chars().next().ok_or("it ends with a backslash")?;
    let after = &rest[c.len_utf8()..];
    match c {
        'b' | 'B' => return Err("word boundaries are not supported".to_owned()),
        '1'..='9' | 'k' => return Err("back-references are not supported".to_owned()),
        '0' => out.push_str(r"\x00"),
        'c' => return Err("`\\c` is not supported".to_owned()),
        '<' | '>' | '/' | '"' | '\'' => out.push(c),
        'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'n' | 'r' | 't' | 'f' | 'v' | 'u' | 'x' | 'p' | 'P' => {
            out.push('\\');
            out.push(c);
        }
        c if c.is_ascii_punctuation() => {
            out.push('\\');
            out.push(c);
        }
        c => return Err(format!("`\\{c}` is not supported")),
    }
    Ok(after)
}

/// What follows an opening parenthesis. Returns what is left.
fn group<'a>(rest: &'a str, out: &mut String) -> Result<&'a str, String> {
    let Some(kind) = rest.strip_prefix('?') else {
        out.push_str("(?:");
        return Ok(rest);
    };
    let look = ["=", "!", "<=", "<!"];
    if look.iter().any(|look| kind.starts_with(look)) {
        return Err("look-around is not supported".to_owned());
    }
    for (open, as_written) in [(":", "(?:"), ("i:", "(?i:"), ("s:", "(?s:"), ("i)", "(?i)")] {
        if let Some(after) = kind.strip_prefix(open) {
            out.push_str(as_written);
            return Ok(after);
        }
    }
    let named = kind.strip_prefix("P<").or_else(|| kind.strip_prefix('<'));
    if let Some((_, after)) = named.and_then(|named| named.split_once('>')) {
        out.push_str("(?:");
        return Ok(after);
    }
    Err("a group that begins with `(?` is not supported".to_owned())
}

/// An expression that matches a whole text just if `pattern`, which was [translated](translate), is found in it.
pub(crate) fn whole(pattern: &str) -> Result<String, String> {
    const ANY: &str = "(?s:.*)";
    let mut alternatives = Vec::new();
    for alternative in alternatives_of(pattern) {
        let (before, body) = match alternative.strip_prefix('^') {
            Some(body) => ("", body),
            None => (ANY, alternative),
        };
        let (body, after) = match body.strip_suffix('$') {
            Some(body) if !ends_in_escape(body) => (body, ""),
            _ => (body, ANY),
        };
        if has_anchor(body) || body.starts_with("(?i)") {
            // `^(?:a|b)$` alone is common and simple: its body has none.
            return Err("an anchor within the expression is not supported here".to_owned());
        }
        alternatives.push(format!("{before}(?:{body}){after}"));
    }
    Ok(format!("(?:{})", alternatives.join("|")))
}

/// The alternatives at the top of an expression.
fn alternatives_of(pattern: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for_each_outside_classes(pattern, |at, c, depth| {
        if c == '|' && depth == 0 {
            parts.push(&pattern[start..at]);
            start = at + 1;
        }
    });
    parts.push(&pattern[start..]);
    parts
}

fn has_anchor(pattern: &str) -> bool {
    let mut found = false;
    for_each_outside_classes(pattern, |_, c, _| found |= matches!(c, '^' | '$'));
    found
}

/// Whether a text ends with a backslash that is not itself escaped.
fn ends_in_escape(text: &str) -> bool {
    let backslashes = text.bytes().rev().take_while(|byte| *byte == b'\\').count();
    backslashes % 2 == 1
}

/// Calls with each character that stands for itself or an operator: place, character, depth of groups around it.
fn for_each_outside_classes(pattern: &str, mut each: impl FnMut(usize, char, usize)) {
    let (mut in_class, mut escaped, mut depth) = (false, false, 0usize);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' if in_class => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            c => each(at, c, depth),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_else_in_rust_is_rewritten() {
        for (pattern, rust) in [
            ("^a+$", "^a+$"),
            ("(a|b)", "(?:a|b)"),
            ("(?<year>[0-9])", "(?:[0-9])"),
            // llguidance takes a group of this name for a look-ahead.
            ("a(?P<stop>b)", "a(?:b)"),
            ("[a[b]", r"[a\[b]"),
            ("[a&&b~]", r"[a\&\&b\~]"),
            ("[^]", r"[\s\S]"),
            (r"\/\-\<\.", r"/\-<\."),
            (r"[\]\d]", r"[\]\d]"),
            (r"\u00e9\x41\0", r"\u00e9\x41\x00"),
        ] {
            assert_eq!(translate(pattern).as_deref(), Ok(rust));
        }
    }

    #[test]
    fn what_has_no_automaton_is_refused_by_name() {
        for (pattern, reason) in [
            ("(?=a)", "look-around"),
            ("(?<!a)", "look-around"),
            (r"\bword", "word boundaries"),
            (r"(a)\1", "back-references"),
            (r"\k<a>", "back-references"),
            ("[]", "matches nothing"),
            ("[a--b]", "`--`"),
            ("[a", "no `]`"),
            ("a\\", "backslash"),
            (r"\e", "`\\e`"),
            ("(?x: a)", "begins with `(?`"),
        ] {
            let error = translate(pattern).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn an_expression_that_is_searched_for_becomes_one_for_the_whole() {
        for (pattern, whole_pattern) in [
            ("a", "(?:(?s:.*)(?:a)(?s:.*))"),
            ("^a$", "(?:(?:a))"),
            ("^a|b$", "(?:(?:a)(?s:.*)|(?s:.*)(?:b))"),
            (r"(?:a|b)[|$]\$", r"(?:(?s:.*)(?:(?:a|b)[|$]\$)(?s:.*))"),
            (r"^\\$", r"(?:(?:\\))"),
        ] {
            assert_eq!(whole(pattern).as_deref(), Ok(whole_pattern));
        }
        for pattern in ["(?:^a|b)", "a$b", "(?i)^a"] {
            assert!(whole(pattern).is_err(), "{pattern}");
        }
    }
}
