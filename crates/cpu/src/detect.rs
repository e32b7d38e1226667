//! Which instructions this machine has; chosen once, at the start.

use std::fmt;

/// A set of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// The same with AVX-512 VNNI's dot products, on 256-bit vectors.
    Avx512Vnni,
}

impl Isa {
    /// The best set that this machine can run.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self::Scalar)
    }

    /// All sets that this machine can run, the best last.
    pub fn available() -> Vec<Self> {
        let mut sets = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 {
                sets.push(Self::Avx2);
            }
            if avx2
                && is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512vl")
            {
                sets.push(Self::Avx512Vnni);
            }
        }
        sets
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Avx512Vnni => "AVX-512 VNNI",
        })
    }
}
