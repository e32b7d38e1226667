//! Telling the template's own text from the contents it prints.
//!
//! A chat template prints `<|user|>` to mean the role token; a user who types `<|user|>` means eight characters. Both
//! end up in one string, so what is whose must be known when that string is encoded, or a prompt can forge turns.
//!
//! How it is done: every string of the request is *marked* before rendering. Around each added token's text in it go
//! two noncharacters, [`OPEN`] and [`CLOSE`]; a string that ends with the beginning of a token gets the empty pair
//! `OPEN CLOSE` after it, so that two strings printed next to each other cannot form a token. The marks lie *outside*
//! the texts, so a template's `'</think>' in content` still holds; the string methods that templates call
//! ([`methods`](crate::template)) see through them. After rendering, [`Marked::parse`] takes the marks out again and
//! yields the untrusted ranges; the result must equal the rendering of the unmarked request, or the request is refused.
//! Not considered, since no chat template does it: a token that template text begins and a content completes, and a
//! content that becomes a token by the template changing its letters (`lower`).
//!
//! Literal [`OPEN`] and [`CLOSE`] in a request (nobody writes noncharacters) are swapped for unused ones meanwhile.

use std::ops::Range;

use crate::AddedTokens;

/// Begins an untrusted range; a Unicode noncharacter, reserved for uses such as this.
pub(crate) const OPEN: char = '\u{FDD0}';
/// Ends an untrusted range.
pub(crate) const CLOSE: char = '\u{FDD1}';

/// True for [`OPEN`] and [`CLOSE`].
pub(crate) fn is_mark(c: char) -> bool {
    c == OPEN || c == CLOSE
}

/// A string with its untrusted ranges (bytes; sorted, disjoint). An empty range is a place that no token may span.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Marked {
    pub(crate) plain: String,
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Marked {
    /// Takes the marks out of a string. Marks without a partner (a template cut between them) mark nothing.
    pub(crate) fn parse(text: &str) -> Self {
        let mut plain = String::with_capacity(text.len());
        let mut ranges = Vec::new();
        let mut open = None;
        for c in text.chars() {
            match c {
                OPEN => open = Some(plain.len()),
                CLOSE => ranges.extend(open.take().map(|start| start..plain.len())),
                _ => plain.push(c),
            }
        }
        Self { plain, ranges }
    }

    /// The same string with the marks in it.
    pub(crate) fn render(&self) -> String {
        self.slice(0..self.plain.len())
    }

    /// The marked form of the substring in `range` (byte offsets into `plain`, on character borders).
    pub(crate) fn slice(&self, range: Range<usize>) -> String {
        let mut out = String::with_capacity(range.len());
        let mut at = range.start;
        // Only those in reach: a text may hold a hundred thousand of them and be cut as often.
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let reached = self.ranges[first..]
            .iter()
            .take_while(|r| r.start <= range.end);
        for untrusted in reached {
            let (start, end) = (
                untrusted.start.max(range.start),
                untrusted.end.min(range.end),
            );
            // A range that the cut leaves empty goes; one that was empty before stays, also at the very end.
            if start > end || (start == end && !untrusted.is_empty()) {
                continue;
            }
            out.push_str(&self.plain[at..start]);
            out.push(OPEN);
            out.push_str(&self.plain[start..end]);
            out.push(CLOSE);
            at = end;
        }
        out.push_str(&self.plain[at..range.end]);
        out
    }
}

/// Marks the strings of one request.
#[derive(Debug)]
pub(crate) struct Marker<'a> {
    added: &'a AddedTokens,
    /// What literal `OPEN` and `CLOSE` become; `None` if the request holds none.
    stand_ins: Option<[char; 2]>,
    /// The added tokens, and unfinished ones, found so far: for the message of a refusal.
    pub(crate) found: Vec<String>,
}

/// Noncharacters from which the stand-ins are taken.
const SPARE: std::ops::RangeInclusive<char> = '\u{FDD2}'..='\u{FDEF}';

impl<'a> Marker<'a> {
    /// `strings` visits every string of the request and the template source, to see which noncharacters are free.
    pub(crate) fn new(
        added: &'a AddedTokens,
        mut strings: impl FnMut(&mut dyn FnMut(&str)),
    ) -> Self {
        let mut literal_marks = false;
        let mut used = std::collections::BTreeSet::new();
        strings(&mut |text: &str| {
            for c in text
                .chars()
                .filter(|c| ('\u{FDD0}'..='\u{FDEF}').contains(c))
            {
                literal_marks |= is_mark(c);
                used.insert(c);
            }
        });
        let mut free = SPARE.filter(|c| !used.contains(c));
        // With all thirty spares taken the last two serve twice; the comparison with the unmarked text then refuses.
        let stand_ins = [
            free.next().unwrap_or('\u{FDEE}'),
            free.next().unwrap_or('\u{FDEF}'),
        ];
        Self {
            added,
            stand_ins: literal_marks.then_some(stand_ins),
            found: Vec::new(),
        }
    }

    /// The string as the template shall see it.
    pub(crate) fn mark(&mut self, text: &str) -> String {
        let plain = match self.stand_ins {
            Some([open, close]) => text
                .chars()
                .map(|c| {
                    if c == OPEN {
                        open
                    } else if c == CLOSE {
                        close
                    } else {
                        c
                    }
                })
                .collect(),
            None => text.to_owned(),
        };
        let mut ranges = self.added.occurrences(&plain);
        for range in &ranges {
            self.note(&plain[range.clone()]);
        }
        // Templates trim contents, so the beginning of a token before trailing blanks counts as well.
        for tail in [plain.trim_end(), plain.as_str()] {
            let inside_last = ranges.last().is_some_and(|last| last.end >= tail.len());
            if let (false, Some(unfinished)) = (inside_last, self.added.unfinished_end(tail)) {
                self.note(unfinished);
                ranges.push(tail.len()..tail.len());
            }
        }
        Marked { plain, ranges }.render()
    }

    fn note(&mut self, text: &str) {
        if !self.found.iter().any(|found| found == text) {
            self.found.push(text.to_owned());
        }
    }

    /// Undoes the stand-ins in a rendered text that [`Marked::parse`] has taken the marks from. Byte offsets hold,
    /// since all noncharacters involved have three bytes.
    pub(crate) fn restore(&self, text: String) -> String {
        match self.stand_ins {
            Some([open, close]) => text
                .chars()
                .map(|c| {
                    if c == open {
                        OPEN
                    } else if c == close {
                        CLOSE
                    } else {
                        c
                    }
                })
                .collect(),
            None => text,
        }
    }
}

/// True if no untrusted range forbids a token at `token`: it neither overlaps one nor spans a forbidden place.
pub(crate) fn is_trusted(token: &Range<usize>, untrusted: &[Range<usize>]) -> bool {
    let first = untrusted.partition_point(|range| range.end <= token.start);
    untrusted[first..]
        .iter()
        .take_while(|range| range.start < token.end)
        .next()
        .is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenId;

    fn added() -> AddedTokens {
        AddedTokens::new(
            ["<|user|>", "</think>", "<think>", "/nothink"].map(|t| (t.to_owned(), TokenId(0))),
        )
    }

    fn mark(text: &str) -> String {
        Marker::new(&added(), |visit| visit(text)).mark(text)
    }

    #[test]
    fn tokens_are_bracketed_and_everything_else_is_left() {
        assert_eq!(mark("plain"), "plain");
        assert_eq!(mark("a</think>b"), "a\u{FDD0}</think>\u{FDD1}b");
        assert_eq!(mark("a<|us"), "a<|us\u{FDD0}\u{FDD1}");
        assert_eq!(mark("a<|us \n"), "a<|us\u{FDD0}\u{FDD1} \n");
        assert_eq!(mark("see https://x/"), "see https://x/\u{FDD0}\u{FDD1}");
    }

    #[test]
    fn literal_marks_come_back() {
        let added = added();
        let text = "x\u{FDD0}y\u{FDD2}</think>\u{FDD1}";
        let mut marker = Marker::new(&added, |visit| visit(text));
        let marked = Marked::parse(&marker.mark(text));
        assert_eq!(marked.ranges, vec![8..16]);
        assert_eq!(marker.restore(marked.plain), text);
    }

    #[test]
    fn slices_keep_whole_ranges_and_clip_cut_ones() {
        let marked = Marked::parse(&mark("a</think>b"));
        assert_eq!(marked.slice(0..1), "a");
        assert_eq!(marked.slice(9..10), "b");
        assert_eq!(marked.slice(1..4), "\u{FDD0}</t\u{FDD1}");
        assert_eq!(marked.render(), mark("a</think>b"));
    }

    #[test]
    fn trust_ends_where_ranges_begin() {
        let untrusted = vec![4..8, 10..10];
        for (token, trusted) in [
            (0..4, true),
            (0..5, false),
            (5..6, false),
            (8..10, true),
            (9..11, false),
            (10..12, true),
        ] {
            assert_eq!(is_trusted(&token, &untrusted), trusted, "{token:?}");
        }
    }
}
