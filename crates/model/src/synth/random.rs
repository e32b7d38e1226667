//! Random words by position: word `i` of a stream is a function of seed, name and `i` alone.
//!
//! The generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), whose state is a counter, so that any thread can begin
//! anywhere.

/// What the counter grows by: 2⁶⁴ over the golden ratio.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A stream of random words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The stream of what is called `name`, such as a tensor.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a tells names apart, the finaliser spreads neighbouring seeds.
        let fnv = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        });
        Self {
            key: mix(seed.wrapping_add(GAMMA)) ^ fnv,
        }
    }

    /// Where its counter starts.
    pub fn key(self) -> u64 {
        self.key
    }

    /// The words from number `at` on.
    pub fn words(self, at: u64) -> Words {
        Words(self.key.wrapping_add(at.wrapping_mul(GAMMA)))
    }
}

/// Consecutive words of a [`Stream`].
#[derive(Debug, Clone)]
pub struct Words(u64);

impl Words {
    /// 64 random bits.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number in 0..1, of 24 bits.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Mean 0, standard deviation 1, and nearly normal: the sum of four uniform numbers. No function of a mathematical
    /// library is involved, so that every machine makes the same bits.
    #[inline]
    pub fn normal(&mut self) -> f32 {
        let word = self.next();
        let sum = (0..4)
            .map(|i| (word >> (16 * i)) as u16 as i32)
            .sum::<i32>();
        // Four times the variance of a uniform number of 16 bits, (2^32 - 1) / 12, is 37837.2².
        (sum - 2 * 0xffff) as f32 * (1.0 / 37837.2)
    }
}

/// SplitMix64's finaliser.
#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of the reference generator for seed 0 (`splitmix64.c` by S. Vigna).
    #[test]
    fn words_are_those_of_split_mix() {
        let mut words = Words(0);
        let first = [words.next(), words.next(), words.next()];
        assert_eq!(
            first,
            [
                0xE220_A839_7B1D_CDAF,
                0x6E78_9E6A_A1B9_65F4,
                0x06C4_5D18_8009_454F
            ]
        );
    }

    #[test]
    fn a_stream_can_be_entered_anywhere() {
        let stream = Stream::new(7, "blk.0.attn_q_a.weight");
        let mut from_start = stream.words(0);
        let all: Vec<u64> = (0..100).map(|_| from_start.next()).collect();
        for at in [1, 50, 99] {
            assert_eq!(stream.words(at).next(), all[at as usize]);
        }
        assert_ne!(Stream::new(8, "blk.0.attn_q_a.weight"), stream);
        assert_ne!(Stream::new(7, "blk.1.attn_q_a.weight"), stream);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut words = Stream::new(1, "normal").words(0);
        let n = 1 << 16;
        let values: Vec<f64> = (0..n).map(|_| f64::from(words.normal())).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let square = values.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        // Five standard errors: of a mean 1/√n, of a mean square less than √2/√n.
        let bound = 5.0 / f64::from(n).sqrt();
        assert!(mean.abs() < bound, "{mean}");
        assert!((square - 1.0).abs() < bound * 2f64.sqrt(), "{square}");
    }
}
