//! Pre-tokenizers: how raw text is cut into pieces before byte-pair merging, by name.
//!
//! A GGUF file names its pre-tokenizer in `tokenizer.ggml.pre`; a `tokenizer.json` carries the regular expressions
//! themselves, which are recognised against this table. What is not in the table is refused, unless the user names a
//! row: a tokenizer that is nearly right gives a model that is quietly worse.
//!
//! Names, expressions and defaults are those of llama.cpp 0.5.0 (`llama-vocab.cpp`: `llm_tokenizer_bpe` and
//! `llama_vocab::impl::load`). Where that file shows the expression of the published `tokenizer.json` beside its own,
//! the published one stands here: its engine is the one that cuts.

use crate::TextError;

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    /// The name in `tokenizer.ggml.pre`.
    pub name: &'static str,
    /// Other names with the same expressions and the same defaults.
    pub aliases: &'static [&'static str],
    /// Applied in turn, each to every piece that the one before has left: its matches become pieces, and so does what
    /// stands between them.
    pub splits: &'static [&'static Split],
    /// What a GGUF with this name means by a piece that is a token as a whole: emit it without merging.
    pub ignore_merges: bool,
    /// Whether plain prompts start with the beginning-of-sequence token, unless the file's own key says otherwise.
    pub add_bos: bool,
}

/// One regular expression, for an engine with `\p{…}` and look-around. Leftmost match, first branch wins.
#[derive(Debug, PartialEq, Eq)]
pub struct Split {
    /// The expression as it is run.
    pub pattern: &'static str,
    /// Other spellings found in files, equal in meaning.
    pub spellings: &'static [&'static str],
}

impl Split {
    const fn of(pattern: &'static str) -> Self {
        Self {
            pattern,
            spellings: &[],
        }
    }

    fn is_written(&self, pattern: &str) -> bool {
        self.pattern == pattern || self.spellings.contains(&pattern)
    }
}

/// English contractions in either case; a run of letters with at most one leading character that is no letter, digit
/// or newline (so a space or `(` sticks to the word); digits in groups of at most three; a run of symbols with an
/// optional leading space and trailing newlines; blanks up to and including newlines; trailing blanks, leaving the
/// last one for the next word; other blanks.
static LLAMA3: Split = Split {
    pattern: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    spellings: &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
};

/// [`LLAMA3`] with each digit alone.
static QWEN2: Split = Split {
    pattern: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    spellings: &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
};

/// Contractions in lower case; letters, digits or symbols with an optional leading space; blanks. What `ByteLevel`
/// with `use_regex` cuts by in a `tokenizer.json`.
pub(crate) static GPT2: Split = Split {
    pattern: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    // The single blank that this leaves unmatched becomes a piece all the same.
    spellings: &[r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"],
};

/// Each digit alone: `Digits` with `individual_digits`.
pub(crate) static DIGIT: Split = Split::of(r"\p{N}");

/// Runs of digits: `Digits` without `individual_digits`.
pub(crate) static DIGITS: Split = Split::of(r"\p{N}+");

static DEEPSEEK_LLM: &[&Split] = &[
    // The source writes the two characters themselves into the file.
    &Split {
        pattern: r"[\r\n]",
        spellings: &["[\r\n]"],
    },
    // Letters of the scripts with case, as a list from an older Unicode. All but ASCII is escaped: some of these
    // characters (KELVIN SIGN, GREEK LETTER ALPHA WITH OXIA) do not survive an editor that normalises.
    &Split::of(concat!(
        r"\s?[A-Za-z",
        "\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
        "\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
        "\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
        "\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}",
        "\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}",
        "\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}",
        "\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}",
        "\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}",
        "\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}",
        "\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}",
        "\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}",
        "\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}",
        "\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}",
        "\u{1E900}-\u{1E943}",
        "]+",
    )),
    // Punctuation, ASCII and full-width.
    &Split::of("\\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+"),
    // Blanks at the end of the piece. The look-behind changes nothing but the time: without it, a run of blanks that
    // is not at the end is tried from each of its characters.
    &Split {
        pattern: r"(?<!\s)\s+$",
        spellings: &[r"\s+$"],
    },
    // Han, most other scripts without case, Hangul.
    &Split::of("[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+"),
    &DIGITS,
];

static DEEPSEEK_V3: &[&Split] = &[
    &Split::of(r"\p{N}{1,3}"),
    // Han, Hiragana, Katakana.
    &Split::of("[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"),
    // A word with the ASCII symbol before it, any word with its marks, symbols, blanks.
    &Split {
        pattern: r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        spellings: &[
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        ],
    },
];

/// The known pre-tokenizers.
///
/// Not every name that llama.cpp treats like one of these is an alias. `phi-2`, `mpt` and `olmo` cut as `gpt-2` does,
/// but have added tokens for runs of blanks, which count in any text there; here user text is never searched for added
/// tokens. `command-r` cuts as `smollm` does, but has normal tokens outside the byte alphabet.
///
/// Of two rows with the same expressions the first is the one that a `tokenizer.json` leads to: it states the defaults
/// itself.
pub static PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        name: "glm4",
        aliases: &["glm5"],
        splits: &[&LLAMA3],
        ignore_merges: true,
        add_bos: false,
    },
    PreTokenizer {
        name: "chatglm-bpe",
        aliases: &[],
        splits: &[&LLAMA3],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        name: "llama-bpe",
        aliases: &[
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        splits: &[&LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        name: "qwen2",
        aliases: &["deepseek-r1-qwen", "kormo", "megrez"],
        splits: &[&QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        name: "deepseek-llm",
        aliases: &[],
        splits: DEEPSEEK_LLM,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        name: "deepseek-v3",
        aliases: &["joyai-llm", "hunyuan-dense", "hy_v4"],
        splits: DEEPSEEK_V3,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        name: "gpt-2",
        aliases: &[],
        splits: &[&GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        name: "smollm",
        aliases: &["starcoder", "refact"],
        splits: &[&DIGIT, &GPT2],
        ignore_merges: false,
        add_bos: false,
    },
];

/// The row with this name or alias.
pub fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS
        .iter()
        .find(|row| row.name == name || row.aliases.contains(&name))
}

/// The row that the user asks for with `--pre`.
///
/// # Errors
/// [`TextError::NoSuchPreTokenizer`], which lists the known names.
pub fn by_option(name: &str) -> Result<&'static PreTokenizer, TextError> {
    by_name(name).ok_or_else(|| TextError::NoSuchPreTokenizer {
        name: name.to_owned(),
        known: known_names(),
    })
}

/// The first row with these regular expressions, in any of their known spellings.
pub fn by_patterns(patterns: &[&str]) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|row| {
        row.splits.len() == patterns.len()
            && row
                .splits
                .iter()
                .zip(patterns)
                .all(|(split, pattern)| split.is_written(pattern))
    })
}

/// All names and aliases, for messages.
pub fn known_names() -> String {
    let names: Vec<&str> = PRE_TOKENIZERS
        .iter()
        .flat_map(|row| std::iter::once(row.name).chain(row.aliases.iter().copied()))
        .collect();
    names.join(", ")
}
