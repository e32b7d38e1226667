//! An answer as it is written, and which tokens may come next.

use glim_text::TokenId;

use crate::{Grammar, MatchError, Vocabulary, compile};

/// Where in the answer we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Within the reasoning: any text.
    Reasoning,
    /// At the start of an answer that has not begun to reason: it may yet.
    Start,
    /// Within what the grammar binds.
    Bound,
    /// A stop token came.
    Ended,
}

/// Follows one answer through a [`Grammar`].
///
/// Reasoning is free until the token `</think>`, but for two things that would end it early and leave the answer unbound: a
/// stop token, and a call that the grammar does not ask for. Then the grammar binds, from the first token. Stop
/// tokens are allowed just where the grammar accepts, and nothing comes after one.
#[derive(Clone)]
pub struct Matcher {
    vocabulary: Vocabulary,
    automaton: llguidance::Matcher,
    calls_tools: bool,
    state: State,
    /// The automaton has taken a token.
    has_begun: bool,
}

impl Matcher {
    /// At the start of an answer. `starts_in_reasoning` says whether the prompt ended inside `<think>`
    /// ([`glim_text::starts_in_reasoning`]). If not, the model may still open it itself, first of all. A vocabulary
    /// without the token `</think>` has no reasoning to tell apart, so the grammar binds at once.
    pub fn new(grammar: &Grammar, starts_in_reasoning: bool) -> Self {
        let vocabulary = grammar.vocabulary().clone();
        let tags = vocabulary.tags();
        let state = match (starts_in_reasoning, tags.think_end, tags.think) {
            (true, Some(_), _) => State::Reasoning,
            (false, Some(_), Some(_)) => State::Start,
            _ => State::Bound,
        };
        Self {
            automaton: grammar.automaton(),
            calls_tools: grammar.calls_tools(),
            vocabulary,
            state,
            has_begun: false,
        }
    }

    /// True where the grammar binds the next token and has bound none yet: the place for whatever else an answer may be.
    pub fn at_start(&self) -> bool {
        matches!(self.state, State::Start | State::Bound) && !self.has_begun
    }

    /// Clears the bits of tokens that may not come next: bit `id % 32` of word `id / 32`, 1 for allowed. Where the grammar binds,
    /// words beyond the vocabulary are cleared too.
    ///
    /// # Errors
    /// [`MatchError::Exhausted`] if a limit on the automaton's work or memory is hit; it stays so.
    pub fn restrict(&mut self, mask: &mut [u32]) -> Result<(), MatchError> {
        match self.state {
            State::Reasoning => {
                self.forbid_ends_of_reasoning(mask);
                Ok(())
            }
            State::Ended => {
                let stop = self.vocabulary.stop();
                keep(mask, |word| word_of(stop, word));
                Ok(())
            }
            State::Start | State::Bound => {
                let allowed = self
                    .automaton
                    .compute_mask_or_eos()
                    .map_err(|error| exhausted(&error))?;
                let think = match self.state {
                    State::Start => self.vocabulary.tags().think,
                    _ => None,
                };
                let allowed = allowed.as_slice();
                keep(mask, |word| {
                    let bound = allowed.get(word).copied().unwrap_or(0);
                    bound | word_of(think.as_slice(), word)
                });
                Ok(())
            }
        }
    }

    /// Takes the token that was drawn, a stop token too.
    ///
    /// # Errors
    /// [`MatchError::Forbidden`] for a token that [`restrict`](Self::restrict) would have cleared, [`MatchError::Exhausted`].
    pub fn accept(&mut self, token: TokenId) -> Result<(), MatchError> {
        let tags = self.vocabulary.tags();
        let forbidden = Err(MatchError::Forbidden { token: token.0 });
        let is_stop = self.vocabulary.stop().contains(&token);
        match self.state {
            State::Ended if is_stop => Ok(()),
            State::Ended => forbidden,
            State::Reasoning if is_stop => forbidden,
            State::Reasoning => {
                if tags.think_end == Some(token) {
                    self.state = State::Bound;
                } else if tags.tool_call == Some(token) {
                    // The reasoning ends here, and this is the answer's first token.
                    if !self.calls_tools {
                        return forbidden;
                    }
                    self.state = State::Bound;
                    return self.consume(token);
                }
                Ok(())
            }
            State::Start if tags.think == Some(token) => {
                self.state = State::Reasoning;
                Ok(())
            }
            State::Start | State::Bound if is_stop => {
                let accepts = self
                    .automaton
                    .is_accepting()
                    .map_err(|error| exhausted(&error))?;
                if !accepts {
                    return forbidden;
                }
                self.state = State::Ended;
                Ok(())
            }
            State::Start | State::Bound => {
                self.state = State::Bound;
                self.consume(token)
            }
        }
    }

    fn consume(&mut self, token: TokenId) -> Result<(), MatchError> {
        self.has_begun = true;
        // The automaton of a whole answer takes nothing more; and a token that it refuses would leave it broken.
        let forbidden = MatchError::Forbidden { token: token.0 };
        if self.automaton.is_stopped() && !self.automaton.is_error() {
            return Err(forbidden);
        }
        let taken = self
            .automaton
            .try_consume_tokens(&[token.0])
            .map_err(|error| exhausted(&error))?;
        if taken == 1 { Ok(()) } else { Err(forbidden) }
    }

    /// Clears what would end the reasoning without the answer that is asked for.
    fn forbid_ends_of_reasoning(&self, mask: &mut [u32]) {
        let call = match self.calls_tools {
            true => None,
            false => self.vocabulary.tags().tool_call,
        };
        for id in self.vocabulary.stop().iter().chain(call.as_ref()) {
            if let Some(word) = mask.get_mut(id.0 as usize / 32) {
                *word &= !(1 << (id.0 % 32));
            }
        }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("vocabulary", &self.vocabulary)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

fn exhausted(error: &dyn std::fmt::Display) -> MatchError {
    MatchError::Exhausted {
        reason: compile::one_line(&error.to_string()),
    }
}

fn keep(mask: &mut [u32], allowed: impl Fn(usize) -> u32) {
    for (index, word) in mask.iter_mut().enumerate() {
        *word &= allowed(index);
    }
}

/// The bits of these tokens in a word of a mask.
fn word_of(tokens: &[TokenId], word: usize) -> u32 {
    let here = tokens.iter().filter(|id| id.0 as usize / 32 == word);
    here.fold(0, |bits, id| bits | 1 << (id.0 % 32))
}
