//! How the prompts that are being computed share a prefill step.
//!
//! The most urgent one gets half of the step at least, the next half of what is left, and so on; what one does not need goes to the
//! others, the most urgent first. So a long prompt is slowed by half at most, and a short one that arrives behind it gets its first
//! token after a step or two rather than after the long one. Sharing is among equal priorities: a less urgent prompt gets what
//! the more urgent ones leave.

use std::ops::Range;

use super::{RequestId, Urgency};

/// Prompts that may run in one prefill step, and what they still need.
#[derive(Debug)]
pub(super) struct Share {
    budget: usize,
    max_members: usize,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    urgency: Urgency,
    from: usize,
    needs: usize,
    gets: usize,
}

impl Share {
    /// A step of at most `budget` tokens of at most `max_members` sequences.
    pub(super) fn new(budget: usize, max_members: usize) -> Self {
        // As many as can each get a token by halving.
        let halves = budget.checked_ilog2().map_or(0, |log| log as usize + 1);
        Self {
            budget,
            max_members: max_members.min(halves),
            members: Vec::new(),
        }
    }

    /// Whether one more prompt of this priority can get tokens. Prompts come in order of urgency.
    pub(super) fn has_room(&self, priority: i32) -> bool {
        let before = self
            .members
            .iter()
            .filter(|m| m.urgency.priority < priority);
        let taken: usize = before.map(|m| m.needs).sum();
        self.members.len() < self.max_members && taken < self.budget
    }

    /// One more prompt, whose tokens `range` are not computed.
    pub(super) fn push(&mut self, urgency: Urgency, range: Range<usize>) {
        self.members.push(Member {
            urgency,
            from: range.start,
            needs: range.len(),
            gets: 0,
        });
    }

    /// What each gets now: a part of its prompt.
    pub(super) fn divide(mut self) -> Vec<(RequestId, Range<usize>)> {
        let mut left = self.budget;
        for i in 0..self.members.len() {
            let priority = |i: usize| self.members.get(i).map(|m| m.urgency.priority);
            let is_last = priority(i + 1) != priority(i);
            let share = if is_last { left } else { left.div_ceil(2) };
            let member = &mut self.members[i];
            member.gets = member.needs.min(share);
            left -= member.gets;
        }
        for member in &mut self.members {
            let more = (member.needs - member.gets).min(left);
            member.gets += more;
            left -= more;
        }
        let got = self.members.iter().filter(|m| m.gets > 0);
        got.map(|m| (m.urgency.id, m.from..m.from + m.gets))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs by priority and length; what each gets.
    fn check(budget: usize, needs: &[(i32, usize)], expected: &[usize]) {
        let mut share = Share::new(budget, 8);
        for (id, (priority, n)) in needs.iter().enumerate() {
            let id = RequestId(id as u64);
            let priority = *priority;
            if share.has_room(priority) {
                share.push(Urgency { priority, id }, 10..10 + n);
            }
        }
        let mut got = vec![0; needs.len()];
        for (id, range) in share.divide() {
            assert_eq!(range.start, 10);
            got[id.0 as usize] = range.len();
        }
        assert_eq!(got, expected, "{needs:?} of {budget}");
    }

    #[test]
    fn one_prompt_gets_all_and_several_halve() {
        check(256, &[(0, 1000)], &[256]);
        check(256, &[(0, 1000), (0, 1000)], &[128, 128]);
        check(256, &[(0, 1000), (0, 40)], &[216, 40]);
        check(256, &[(0, 10), (0, 1000), (0, 1000)], &[10, 123, 123]);
        check(256, &[(0, 1000), (0, 1000), (0, 8)], &[184, 64, 8]);
    }

    #[test]
    fn nobody_is_let_in_for_nothing() {
        check(1, &[(0, 5), (0, 5)], &[1, 0]);
        check(4, &[(0, 9), (0, 9), (0, 9), (0, 9)], &[2, 1, 1, 0]);
        check(0, &[(0, 1)], &[0]);
    }

    #[test]
    fn the_less_urgent_get_what_is_left() {
        check(64, &[(0, 100), (1, 100)], &[64, 0]);
        check(64, &[(0, 60), (1, 100), (1, 100)], &[60, 2, 2]);
        check(64, &[(-1, 10), (0, 100), (0, 4)], &[10, 50, 4]);
    }
}
