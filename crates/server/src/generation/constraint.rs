//! What binds an answer token by token: a grammar, and a budget of reasoning. The engine asks before each draw.

use glim_engine::{ConstraintError, TokenConstraint};
use glim_grammar::Matcher;
use glim_text::{TokenId, Tokenizer};

/// Tokens of the tags that steer an answer; `None` where the vocabulary has no such token.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tags {
    pub(crate) think: Option<TokenId>,
    pub(crate) think_end: Option<TokenId>,
    pub(crate) tool_call: Option<TokenId>,
}

impl Tags {
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        let added = tokenizer.added_tokens();
        Self {
            think: added.id_of("<think>"),
            think_end: added.id_of("</think>"),
            tool_call: added.id_of("<tool_call>"),
        }
    }
}

/// Ends the reasoning when its tokens are used up.
#[derive(Debug, Clone)]
pub(crate) struct ReasoningBudget {
    /// Tokens that are left.
    left: usize,
    in_reasoning: bool,
    think: Option<TokenId>,
    think_end: TokenId,
}

impl ReasoningBudget {
    /// `None` if the vocabulary has no tag that could end the reasoning.
    pub(crate) fn new(tokens: usize, starts_in_reasoning: bool, tags: &Tags) -> Option<Self> {
        Some(Self {
            left: tokens,
            in_reasoning: starts_in_reasoning,
            think: tags.think,
            think_end: tags.think_end?,
        })
    }

    fn restrict(&self, mask: &mut [u32]) {
        if self.in_reasoning && self.left == 0 {
            only(self.think_end, mask);
        }
    }

    fn accept(&mut self, token: TokenId) {
        if token == self.think_end {
            self.in_reasoning = false;
        } else if self.in_reasoning {
            self.left = self.left.saturating_sub(1);
        } else if Some(token) == self.think {
            self.in_reasoning = true;
        }
    }
}

/// A grammar that the answer is bound by, or may leave at its very start for a call of a tool.
#[derive(Debug, Clone)]
pub(crate) struct Grammatical {
    matcher: Matcher,
    /// Where tools may be called instead.
    or_call: Option<TokenId>,
    /// A call was begun: the answer is free.
    released: bool,
}

impl Grammatical {
    pub(crate) fn new(matcher: Matcher, or_call: Option<TokenId>) -> Self {
        Self {
            matcher,
            or_call,
            released: false,
        }
    }
}

/// All that binds an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Constraint {
    pub(crate) grammar: Option<Grammatical>,
    pub(crate) budget: Option<ReasoningBudget>,
}

impl Constraint {
    /// For the engine; `None` if nothing binds.
    pub(crate) fn boxed(self) -> Option<Box<dyn TokenConstraint>> {
        let binds = self.grammar.is_some() || self.budget.is_some();
        binds.then(|| Box::new(self) as Box<dyn TokenConstraint>)
    }
}

impl TokenConstraint for Constraint {
    fn restrict(&mut self, mask: &mut [u32]) -> Result<(), ConstraintError> {
        if let Some(grammar) = self.grammar.as_mut().filter(|grammar| !grammar.released) {
            let call = grammar
                .or_call
                .filter(|call| grammar.matcher.at_start() && is_set(*call, mask));
            grammar.matcher.restrict(mask).map_err(explain)?;
            if let Some(call) = call {
                set(call, mask);
            }
        }
        if let Some(budget) = &self.budget {
            budget.restrict(mask);
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        if let Some(budget) = &mut self.budget {
            budget.accept(token);
        }
        if let Some(grammar) = self.grammar.as_mut().filter(|grammar| !grammar.released) {
            if grammar.matcher.at_start() && Some(token) == grammar.or_call {
                grammar.released = true;
            } else {
                grammar.matcher.accept(token).map_err(explain)?;
            }
        }
        Ok(())
    }

    fn clone_box(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

fn explain(error: glim_grammar::MatchError) -> ConstraintError {
    ConstraintError {
        reason: error.to_string(),
    }
}

fn word(token: TokenId) -> (usize, u32) {
    (token.0 as usize / 32, 1 << (token.0 % 32))
}

fn is_set(token: TokenId, mask: &[u32]) -> bool {
    let (index, bit) = word(token);
    mask.get(index).is_some_and(|word| word & bit != 0)
}

fn set(token: TokenId, mask: &mut [u32]) {
    let (index, bit) = word(token);
    if let Some(word) = mask.get_mut(index) {
        *word |= bit;
    }
}

/// Leaves this token, if it was allowed before.
fn only(token: TokenId, mask: &mut [u32]) {
    let allowed = is_set(token, mask);
    mask.fill(0);
    if allowed {
        set(token, mask);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const TAGS: Tags = Tags {
        think: Some(TokenId(1)),
        think_end: Some(TokenId(2)),
        tool_call: None,
    };

    fn allowed(constraint: &mut Constraint) -> Vec<u32> {
        let mut mask = [u32::MAX];
        constraint.restrict(&mut mask).unwrap();
        (0..32).filter(|id| mask[0] & (1 << id) != 0).collect()
    }

    #[test]
    fn reasoning_ends_when_its_budget_is_used_up() {
        let budget = ReasoningBudget::new(2, true, &TAGS);
        let mut constraint = Constraint {
            budget,
            ..Constraint::default()
        };
        for token in [7, 8] {
            assert_eq!(allowed(&mut constraint).len(), 32);
            constraint.accept(TokenId(token)).unwrap();
        }
        assert_eq!(allowed(&mut constraint), [2]);
        constraint.accept(TokenId(2)).unwrap();
        assert_eq!(allowed(&mut constraint).len(), 32);
        // A second thought has nothing left.
        constraint.accept(TokenId(1)).unwrap();
        assert_eq!(allowed(&mut constraint), [2]);
    }

    #[test]
    fn an_answer_that_does_not_reason_uses_nothing() {
        let budget = ReasoningBudget::new(0, false, &TAGS);
        let mut constraint = Constraint {
            budget,
            ..Constraint::default()
        };
        constraint.accept(TokenId(9)).unwrap();
        assert_eq!(allowed(&mut constraint).len(), 32);
    }
}
