//! The bounds on what a rule may cost. A rule comes from whoever sends a request.

/// Most sub-schemas (objects and booleans) of a schema, each definition counted once.
pub const MAX_SCHEMA_NODES: usize = 2_000;

/// Most sub-schemas of all tools of which one may be called.
pub const MAX_TOOLS_NODES: usize = 8_000;

/// Deepest nesting of sub-schemas. References start anew.
pub const MAX_SCHEMA_DEPTH: usize = 64;

/// Most sub-schemas after `allOf`, and keywords beside `anyOf`, are multiplied out.
pub const MAX_EXPANDED_NODES: usize = 50_000;

/// Most values of one `enum`, and most choices.
pub const MAX_ALTERNATIVES: usize = 10_000;

/// Longest regular expression, in bytes.
pub const MAX_REGEX_BYTES: usize = 8_192;

/// Longest grammar text, and most text that all constants and names of a schema hold together, in bytes.
pub const MAX_TEXT_BYTES: usize = 256 * 1024;

/// Deepest nesting of brackets in a grammar's text.
pub const MAX_GRAMMAR_DEPTH: usize = 64;

/// Longest token that an automaton knows, in bytes; a longer one is never allowed. A bound of llguidance's trie.
pub const MAX_TOKEN_BYTES: usize = 1_000;

/// Work of building the lexer, in nodes of regular expressions (about 50 in a microsecond).
pub(crate) const LEXER_FUEL: u64 = 1_000_000;

/// Most symbols of the compiled grammar.
pub(crate) const GRAMMAR_SYMBOLS: usize = 200_000;

/// Work of one mask in the lexer (about 14 in a microsecond).
pub(crate) const MASK_LEXER_FUEL: u64 = 500_000;

/// Most Earley items of one mask (about 20 in a microsecond).
pub(crate) const MASK_ITEMS: usize = 100_000;

/// Most states of one lexer, some hundred bytes each. A string whose length is bounded takes several for each character that it has:
/// ten thousand `é` take more than 70000 and fewer than 100000.
pub(crate) const LEXER_STATES: usize = 250_000;

/// Stack of the thread that compiles. A schema is followed by recursion, a few kB for each of at most [`MAX_SCHEMA_NODES`] levels;
/// only what is used is ever touched.
pub(crate) const COMPILE_STACK_BYTES: usize = 128 << 20;
