//! Step sizes: a prompt of any length is run in chunks of a few prepared sizes.

/// Capacities of prefill steps, in tokens.
pub const PREFILL_BUCKETS: &[usize] = &[16, 64, 256, 1024, 4096];

/// The buckets up to the smallest that holds `max_chunk` tokens: what an engine prepares.
pub(crate) fn buckets_for(max_chunk: usize) -> Vec<usize> {
    let last = PREFILL_BUCKETS
        .iter()
        .position(|b| *b >= max_chunk)
        .unwrap_or(PREFILL_BUCKETS.len() - 1);
    PREFILL_BUCKETS[..=last].to_vec()
}

/// The smallest of `buckets` (ascending) that holds `tokens`, or the largest.
pub(crate) fn bucket_for(buckets: &[usize], tokens: usize) -> usize {
    buckets
        .iter()
        .copied()
        .find(|b| *b >= tokens)
        .or(buckets.last().copied())
        .unwrap_or(0)
}

/// Cuts `tokens` into chunks of at most `max_chunk`; all but the last are whole.
pub fn prefill_chunks(
    tokens: usize,
    max_chunk: usize,
) -> impl Iterator<Item = std::ops::Range<usize>> {
    let step = max_chunk.max(1);
    (0..tokens)
        .step_by(step)
        .map(move |start| start..(start + step).min(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_tile_the_prompt() {
        let chunks: Vec<_> = prefill_chunks(10, 4).collect();
        assert_eq!(chunks, [0..4, 4..8, 8..10]);
        assert_eq!(prefill_chunks(0, 4).count(), 0);
        assert_eq!(prefill_chunks(4, 4).collect::<Vec<_>>(), vec![0..4]);
    }

    #[test]
    fn the_last_chunk_takes_the_smallest_bucket_that_holds_it() {
        assert_eq!(buckets_for(256), [16, 64, 256]);
        assert_eq!(buckets_for(7), [16]);
        assert_eq!(buckets_for(100_000), PREFILL_BUCKETS);
        assert_eq!(
            [1, 16, 17, 65, 256].map(|n| bucket_for(&[16, 64, 256], n)),
            [16, 16, 64, 256, 256]
        );
    }
}
