//! Just enough of Rust's lexical structure to look for words in code and not in comments or strings.

/// The source with comments, strings and character literals replaced by blanks, line for line.
pub(super) fn code_only(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut previous = ' ';
    while let Some(c) = rest.chars().next() {
        let hidden = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            '\'' => character(rest),
            'r' | 'b' | 'c' if !is_word(previous) => raw_string(rest),
            _ => 0,
        };
        let taken = if hidden == 0 { c.len_utf8() } else { hidden };
        let (head, tail) = rest.split_at(taken);
        if hidden == 0 {
            out.push(c);
        } else {
            out.extend(head.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        previous = head.chars().next_back().unwrap_or(' ');
        rest = tail;
    }
    out
}

/// Lines (from 1) on which `word` stands as a whole word.
pub(super) fn lines_with_word<'a>(
    code: &'a str,
    word: &'a str,
) -> impl Iterator<Item = usize> + 'a {
    let has = move |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            !line[..at].chars().next_back().is_some_and(is_word)
                && !line[at + word.len()..].chars().next().is_some_and(is_word)
        })
    };
    code.lines()
        .enumerate()
        .filter(move |(_, line)| has(line))
        .map(|(number, _)| number + 1)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Bytes of a block comment; they nest.
fn block_comment(source: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < source.len() {
        let rest = &source[at..];
        let step = if rest.starts_with("/*") {
            depth += 1;
            2
        } else if rest.starts_with("*/") {
            depth -= 1;
            2
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    source.len()
}

/// Bytes of a string with escapes.
fn string(source: &str) -> usize {
    let mut escaped = false;
    for (at, c) in source.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    source.len()
}

/// Bytes of a character literal; 0 for a lifetime.
fn character(source: &str) -> usize {
    let mut chars = source.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some(_)) => {
            // The escaped character itself may be a quote.
            source
                .get(3..)
                .and_then(|rest| rest.find('\''))
                .map_or(0, |at| at + 4)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

/// Bytes of `r"…"`, `r#"…"#`, and the same after `b` or `c`; 0 if it is none.
fn raw_string(source: &str) -> usize {
    let after = source.trim_start_matches(['b', 'c']);
    let Some(after) = after.strip_prefix('r') else {
        return 0;
    };
    let quoted = after.trim_start_matches('#');
    let hashes = after.len() - quoted.len();
    let Some(body) = quoted.strip_prefix('"') else {
        return 0;
    };
    let end = format!("\"{}", "#".repeat(hashes));
    let start = source.len() - body.len();
    body.find(&end)
        .map_or(source.len(), |at| start + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        let squeezed = code_only(source)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(squeezed, expected, "{source}");
    }

    #[test]
    fn comments_and_strings_are_blanked() {
        check("a // unsafe\nb", "a b");
        check("a /* x /* unsafe */ y */ b", "a b");
        check(r#"f("unsafe \" unsafe", b)"#, "f( , b)");
        check("f(r#\"un\"safe\"#, br\"x\", c)", "f( , , c)");
        check("a /* never closed", "a");
    }

    #[test]
    fn characters_are_not_the_start_of_strings() {
        check(r#"x == '"' && y == "z" && w"#, "x == && y == && w");
        check(r"x == '\'' || y == '\\' || z", "x == || y == || z");
        check("x == '\\u{1F600}' || y", "x == || y");
    }

    #[test]
    fn lifetimes_and_names_stay() {
        check(
            "fn f<'a>(x: &'a str, r: &'static str) -> br { r }",
            "fn f<'a>(x: &'a str, r: &'static str) -> br { r }",
        );
        check("let r#type = var\"\";", "let r#type = var ;");
    }

    #[test]
    fn lines_are_kept() {
        let source = "a\n/* b\nc */ d\n\"e\nf\" g";
        assert_eq!(code_only(source).lines().count(), source.lines().count());
        assert_eq!(
            lines_with_word(&code_only(source), "g").collect::<Vec<_>>(),
            [5]
        );
    }

    #[test]
    fn a_word_is_whole() {
        let found: Vec<_> =
            lines_with_word("unsafe {\nunsafe_code\nnot_unsafe\n(unsafe)", "unsafe").collect();
        assert_eq!(found, [1, 4]);
    }
}
