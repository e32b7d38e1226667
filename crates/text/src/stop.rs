//! Stop strings: where the text of an answer ends, whatever pieces it comes in.
//!
//! The answer stops at the first character with which any stop string is complete, and is cut just before that string; if
//! several are complete with the same character, before the longest of them. So of two stop strings of which one begins the
//! other, the shorter always wins. This is what a search after each character gives, and it does not depend on the pieces.
//!
//! Each string is searched for by the automaton of Knuth, Morris and Pratt ("Fast pattern matching in strings", 1977): work
//! is linear in the text, and the automaton's state is just what has to be held back, the longest end of the text with
//! which the string begins. Nothing else is held. Bytes are compared; since UTF-8 is self-synchronising, a match and a held
//! end begin and end between characters.

/// Finds stop strings in a text that comes in pieces.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// The end of the text so far, not given out yet.
    held: String,
    stopped: bool,
}

/// What a piece of text gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Text that is certain not to belong to a stop string.
    pub text: String,
    /// Which stop string ended the text, by its place in the list given. Of equal ones, the first.
    pub matched: Option<usize>,
}

/// One stop string and how much of it the text ends with.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each length of a beginning: the length of the longest shorter beginning that it ends with.
    fallback: Vec<usize>,
    matched: usize,
}

impl StopStrings {
    /// For these strings. An empty one never matches.
    pub fn new(strings: Vec<String>) -> Self {
        Self {
            patterns: strings.into_iter().map(Pattern::new).collect(),
            held: String::new(),
            stopped: false,
        }
    }

    /// Takes the next piece of the text. After a match all further text is dropped.
    pub fn push(&mut self, text: &str) -> Stopped {
        if self.stopped {
            return Stopped::default();
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (index, byte) in text.bytes().enumerate() {
            if let Some((which, length)) = self.advance(byte) {
                self.held
                    .truncate((before + index + 1).saturating_sub(length));
                self.stopped = true;
                return Stopped {
                    text: std::mem::take(&mut self.held),
                    matched: Some(which),
                };
            }
        }
        let hold = self.patterns.iter().map(|pattern| pattern.matched).max();
        let kept = self.held.split_off(self.held.len() - hold.unwrap_or(0));
        Stopped {
            text: std::mem::replace(&mut self.held, kept),
            matched: None,
        }
    }

    /// Ends the text: what was held back comes out.
    pub fn finish(&mut self) -> String {
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Feeds a byte to all patterns: the longest that is now complete, and its length.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut complete: Option<(usize, usize)> = None;
        for (which, pattern) in self.patterns.iter_mut().enumerate() {
            let length = pattern.bytes.len();
            if pattern.advance(byte) && complete.is_none_or(|(_, longest)| length > longest) {
                complete = Some((which, length));
            }
        }
        complete
    }
}

impl Pattern {
    fn new(string: String) -> Self {
        let bytes = string.into_bytes();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at + 1] = length;
        }
        Self {
            bytes,
            fallback,
            matched: 0,
        }
    }

    /// Takes a byte of the text; true if the text now ends with the whole string.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes.get(self.matched) != Some(&byte) {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.bytes.get(self.matched) == Some(&byte));
        self.matched > 0 && self.matched == self.bytes.len()
    }
}
