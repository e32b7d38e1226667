//! Cutting text into pieces with the expressions of a [`PreTokenizer`]. Runs the regular expressions of the
//! `tokenizers` crate (Oniguruma), so that pieces are those of the library.

use tokenizers::utils::SysRegex;

use crate::TextError;
use crate::pretok::PreTokenizer;

/// Longest run of blanks that is cut, in characters. Expressions such as `\s*[\r\n]+` back up through such a run, and
/// the engine aborts a search after ten million steps.
pub const MAX_BLANK_RUN: usize = 1 << 20;

/// A pre-tokenizer, ready to cut.
#[derive(Debug)]
pub struct Splitter {
    splits: Vec<SysRegex>,
}

impl Splitter {
    /// Compiles the expressions.
    ///
    /// # Errors
    /// An expression that the engine does not take: none in the table.
    pub fn new(pre_tokenizer: &PreTokenizer) -> Result<Self, TextError> {
        let compile = |pattern: &str| {
            SysRegex::new(pattern).map_err(|error| TextError::Invalid {
                place: "tokenizer".to_owned(),
                key: "pre-tokenizer".to_owned(),
                found: format!("unusable ({error})"),
                expected: "regular expressions".to_owned(),
            })
        };
        let splits = pre_tokenizer.splits.iter();
        Ok(Self {
            splits: splits
                .map(|split| compile(split.pattern))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The pieces of a text, in order; joined they are the text, and none is empty.
    ///
    /// # Errors
    /// [`TextError::BlankRun`] for absurd runs of blanks.
    pub fn pieces<'t>(&self, text: &'t str) -> Result<Vec<&'t str>, TextError> {
        let mut pieces = Vec::new();
        self.for_each(text, &mut |piece| {
            pieces.push(piece);
            Ok(())
        })?;
        Ok(pieces)
    }

    /// Hands the pieces over one by one; stops at the first error.
    pub(crate) fn for_each<'t>(
        &self,
        text: &'t str,
        take: &mut dyn FnMut(&'t str) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        check_blank_runs(text)?;
        cut(&self.splits, text, take)
    }
}

/// Cuts by the first expression, what comes out of it by the others. As deep as there are expressions.
fn cut<'t>(
    splits: &[SysRegex],
    text: &'t str,
    take: &mut dyn FnMut(&'t str) -> Result<(), TextError>,
) -> Result<(), TextError> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((split, rest)) = splits.split_first() else {
        return take(text);
    };
    let mut done = 0;
    for (start, end) in split.find_iter(text) {
        cut(rest, &text[done..start], take)?;
        cut(rest, &text[start..end], take)?;
        done = end;
    }
    cut(rest, &text[done..], take)
}

fn check_blank_runs(text: &str) -> Result<(), TextError> {
    if text.len() <= MAX_BLANK_RUN {
        return Ok(());
    }
    let (mut run, mut start) = (0usize, 0usize);
    for (at, c) in text.char_indices() {
        if !c.is_whitespace() {
            run = 0;
            continue;
        }
        if run == 0 {
            start = at;
        }
        run += 1;
        if run > MAX_BLANK_RUN {
            return Err(TextError::BlankRun {
                limit: MAX_BLANK_RUN,
                at: start,
            });
        }
    }
    Ok(())
}
