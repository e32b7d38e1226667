//! Step sizes: any number of rows is run in a prepared step that holds it.

/// Capacities of prefill steps, in tokens.
pub const PREFILL_BUCKETS: &[usize] = &[16, 64, 256, 1024, 4096];
/// Capacities of decode steps, in rows.
pub const DECODE_BUCKETS: &[usize] = &[1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128];

/// The buckets up to the smallest that holds `most`: what an engine prepares.
pub(crate) fn buckets_for(all: &[usize], most: usize) -> Vec<usize> {
    let last = all.iter().position(|b| *b >= most).unwrap_or(all.len() - 1);
    all[..=last].to_vec()
}

/// The smallest of `buckets` (ascending) that holds `n`, or the largest.
pub(crate) fn bucket_for(buckets: &[usize], n: usize) -> usize {
    buckets
        .iter()
        .copied()
        .find(|b| *b >= n)
        .or(buckets.last().copied())
        .unwrap_or(0)
}

/// Cuts `tokens` into chunks of at most `max_chunk`; all but the last are whole.
pub(crate) fn prefill_chunks(
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
    fn the_smallest_bucket_that_holds_the_rows_is_taken() {
        assert_eq!(buckets_for(PREFILL_BUCKETS, 256), [16, 64, 256]);
        assert_eq!(buckets_for(PREFILL_BUCKETS, 7), [16]);
        assert_eq!(buckets_for(PREFILL_BUCKETS, 100_000), PREFILL_BUCKETS);
        let taken = [1, 16, 17, 65, 256].map(|n| bucket_for(&[16, 64, 256], n));
        assert_eq!(taken, [16, 16, 64, 256, 256]);
    }
}
