//! Which instructions this machine has; chosen once, at the start.

use std::fmt;

/// A set of kernels that this machine can run: one is had from [`Isa::detect`] or [`Isa::available`] only, which look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(pub(crate) Set);

/// The sets there are, each better than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    /// Portable code.
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same with AVX-512 VNNI's dot products, on 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl Isa {
    /// The best set that this machine can run.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self(Set::Scalar))
    }

    /// All sets that this machine can run, the best last.
    pub fn available() -> Vec<Self> {
        let mut sets = vec![Self(Set::Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 {
                sets.push(Self(Set::Avx2));
            }
            if avx2
                && is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512vl")
            {
                sets.push(Self(Set::Avx512Vnni));
            }
        }
        sets
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni => "AVX-512 VNNI",
        })
    }
}
