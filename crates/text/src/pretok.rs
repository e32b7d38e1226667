//! Pre-tokenizers: how raw text is cut into pieces before byte-pair merging, by name.
//!
//! A GGUF file names its pre-tokenizer in `tokenizer.ggml.pre`; a `tokenizer.json` carries the regular expression
//! itself, which is recognised against this table. A name or expression that is not in the table is refused: a
//! tokenizer that is nearly right gives a model that is quietly worse.

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    /// The name in `tokenizer.ggml.pre`.
    pub name: &'static str,
    /// Other names for the same thing.
    pub aliases: &'static [&'static str],
    /// One alternation; leftmost match, first branch wins. Needs `\p{…}` and a negative look-ahead.
    pub pattern: &'static str,
    /// Other spellings of `pattern` found in files, equal in meaning.
    pub spellings: &'static [&'static str],
    /// What a GGUF with this name means by a piece that is a token as a whole: emit it without merging.
    pub ignore_merges: bool,
}

/// The known pre-tokenizers.
///
/// `glm4` in words: English contractions in either case; a run of letters with at most one leading character that is
/// no letter, digit or newline (so a space or `(` sticks to the word); digits in groups of at most three; a run of
/// symbols with an optional leading space and trailing newlines; blanks up to and including newlines; trailing
/// blanks, leaving the last one for the next word; other blanks.
pub static PRE_TOKENIZERS: &[PreTokenizer] = &[PreTokenizer {
    name: "glm4",
    aliases: &["glm5"],
    pattern: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    spellings: &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    ignore_merges: true,
}];

/// The row with this name or alias.
pub fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS
        .iter()
        .find(|row| row.name == name || row.aliases.contains(&name))
}

/// The row with this regular expression, in any of its known spellings.
pub fn by_pattern(pattern: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS
        .iter()
        .find(|row| row.pattern == pattern || row.spellings.contains(&pattern))
}

/// All names and aliases, for messages.
pub fn known_names() -> String {
    let names: Vec<&str> = PRE_TOKENIZERS
        .iter()
        .flat_map(|row| std::iter::once(row.name).chain(row.aliases.iter().copied()))
        .collect();
    names.join(", ")
}
