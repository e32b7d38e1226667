//! What a check says: what it covered, how it ended, and the first element that is wrong.

use std::fmt;
use std::time::Instant;

/// What a check compares, from the bytes of the file up to the text that comes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Header, sizes, completeness; numbers that cannot be weights.
    File = 1,
    /// `kv_b` rebuilt from `k_b` and `v_b`, and back.
    Layout = 2,
    /// Each tensor beside the same tensor of another checkpoint.
    Checkpoint = 3,
    /// The ranks' slices of each tensor.
    Shards = 4,
    /// The weights as they lie in each rank's memory, beside the file's.
    Residence = 5,
    /// Each operation of the serving path, recomputed from the file's bytes.
    Function = 6,
    /// The likelihood of a text.
    Sense = 7,
}

impl Level {
    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Layout => "layout",
            Self::Checkpoint => "checkpoint",
            Self::Shards => "shards",
            Self::Residence => "residence",
            Self::Function => "function",
            Self::Sense => "sense",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All of what it covered holds.
    Passed,
    /// Something does not hold.
    Failed,
    /// It was not made; [`Check::detail`] says why.
    Skipped,
}

/// The first wrong element, in the order of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadElement {
    /// Tensor, or the buffer of an operation.
    pub tensor: String,
    /// Row: the index over all axes but the last, flattened.
    pub row: u64,
    /// Element of the row.
    pub col: u64,
    /// What it should be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

impl fmt::Display for BadElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tensor,
            row,
            col,
            expected,
            found,
        } = self;
        write!(
            f,
            "{tensor} row {row}, column {col}: expected {expected}, found {found}"
        )
    }
}

/// One check, done.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Its level.
    pub level: Level,
    /// What it is called; unique in its level, lower case.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was looked at: `"1,214 tensors, all elements"`.
    pub covered: String,
    /// Bytes of weights that were read for it.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// The finding in a sentence: of a failed check what is wrong and what to do; of one that passed what it measured, or nothing.
    pub detail: String,
    /// The first wrong element, where there is one.
    pub first_bad: Option<BadElement>,
}

/// A check that has begun.
#[derive(Debug, Clone)]
pub struct Timer {
    level: Level,
    name: String,
    start: Instant,
}

impl Timer {
    /// Begins now.
    pub fn start(level: Level, name: impl Into<String>) -> Self {
        Self {
            level,
            name: name.into(),
            start: Instant::now(),
        }
    }

    /// The same beginning under another name, for checks that share one pass.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// It held.
    pub fn passed(
        self,
        covered: impl Into<String>,
        bytes: u64,
        detail: impl Into<String>,
    ) -> Check {
        self.end(Outcome::Passed, covered.into(), bytes, detail.into(), None)
    }

    /// It did not hold.
    pub fn failed(
        self,
        covered: impl Into<String>,
        bytes: u64,
        detail: impl Into<String>,
        first_bad: Option<BadElement>,
    ) -> Check {
        self.end(
            Outcome::Failed,
            covered.into(),
            bytes,
            detail.into(),
            first_bad,
        )
    }

    /// It was not made, for this reason.
    pub fn skipped(self, reason: impl Into<String>) -> Check {
        self.end(Outcome::Skipped, String::new(), 0, reason.into(), None)
    }

    fn end(
        self,
        outcome: Outcome,
        covered: String,
        bytes: u64,
        detail: String,
        first_bad: Option<BadElement>,
    ) -> Check {
        Check {
            level: self.level,
            name: self.name,
            outcome,
            covered,
            bytes,
            seconds: self.start.elapsed().as_secs_f64(),
            detail,
            first_bad,
        }
    }
}
