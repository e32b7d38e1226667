//! A request in times, and how it ended.
//!
//! The intervals are vLLM's (`docs/design/metrics.md`), all of one monotonic clock: queued is arrival to the first step, prefill from
//! there to the first token, decode from the first token to the last, inference prefill and decode together.

use std::time::Duration;

/// What is known of a request at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTimes {
    /// Arrival to the end.
    pub(crate) e2e: Duration,
    /// Arrival to the first step.
    pub(crate) queue: Duration,
    /// First step to the first token.
    pub(crate) prefill: Duration,
    /// First token to the last.
    pub(crate) decode: Duration,
    /// Tokens of each answer.
    pub(crate) answers: Vec<usize>,
}

/// Where a request was when its client went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CancelState {
    /// It waited for its first step.
    Queued,
    /// Its prompt was being computed.
    Prefill,
    /// It had given a token.
    Decode,
}

/// How a request ended, as vLLM's `finished_reason` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ending {
    /// At a stop token or a stop string, or with calls of tools.
    Stop,
    /// At the limit of tokens.
    Length,
    /// The client went away.
    Abort,
    /// It failed, or its time was up.
    Error,
}

impl RequestTimes {
    /// First step to the last token.
    pub(super) fn inference(&self) -> Duration {
        self.prefill.saturating_add(self.decode)
    }

    /// Tokens of the longest answer.
    pub(super) fn longest(&self) -> usize {
        self.answers.iter().copied().max().unwrap_or(0)
    }

    /// The mean time between the tokens of the longest answer, which decoding lasted for; `None` if it has less than two.
    pub(super) fn per_output_token(&self) -> Option<Duration> {
        let gaps = self.longest().checked_sub(1)?;
        self.decode.checked_div(u32::try_from(gaps).ok()?)
    }
}

impl CancelState {
    pub(super) const ALL: [Self; 3] = [Self::Queued, Self::Prefill, Self::Decode];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl Ending {
    pub(super) const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// Calls of tools are a stop to vLLM.
    pub(super) fn of(finish_reason: &str) -> Self {
        match finish_reason {
            "stop" | "tool_calls" => Self::Stop,
            "length" => Self::Length,
            "abort" => Self::Abort,
            _ => Self::Error,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(answers: &[usize], decode_ms: u64, expected_ms: Option<u64>) {
        let times = RequestTimes {
            answers: answers.to_vec(),
            decode: Duration::from_millis(decode_ms),
            ..RequestTimes::default()
        };
        assert_eq!(
            times.per_output_token(),
            expected_ms.map(Duration::from_millis)
        );
    }

    #[test]
    fn the_mean_time_of_a_token_needs_two_in_an_answer() {
        check(&[4], 30, Some(10));
        check(&[2, 4, 1], 30, Some(10));
        check(&[1], 0, None);
        check(&[0], 0, None);
        check(&[1, 1], 5, None);
        check(&[], 0, None);
    }
}
