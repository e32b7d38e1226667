//! A hash of a weight's bytes that does not depend on how they lie: what a device holds, in whatever layout, can be compared with a file
//! without being moved back.
//!
//! The bytes are cut into units of [`unit`] bytes, which no layout divides. Unit `i` with value `v` becomes `mix(i · γ + v)`, where γ and
//! `mix` are those of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), and the hash is the sum of all. `mix` is a bijection, so one unit that differs
//! always shows; several hide with a probability of 2⁻⁶⁴. That finds what memory, buses and kernels do to bytes. It is no proof against
//! somebody who chooses them.

use glim_quant::GgmlType;

/// What the place of a unit is multiplied by: 2⁶⁴ over the golden ratio.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
/// Bytes that are worth a thread.
const PART: usize = 4 << 20;

/// Bytes of a unit: the largest power of two up to 4 that divides a block's bytes. Fields of blocks begin and end at such multiples.
pub fn unit(ty: GgmlType) -> usize {
    1 << ty.block_bytes().trailing_zeros().min(2)
}

/// The hash of a weight's bytes in the order of the file, computed by all cores.
pub fn fingerprint(ty: GgmlType, bytes: &[u8]) -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = bytes.len().div_ceil(threads).max(PART);
    let part = part.next_multiple_of(unit(ty));
    std::thread::scope(|scope| {
        let parts: Vec<_> = bytes
            .chunks(part)
            .enumerate()
            .map(|(i, bytes)| {
                let first = (i * part / unit(ty)) as u64;
                scope.spawn(move || of_part(ty, first, bytes))
            })
            .collect();
        let sums = parts.into_iter().map(|part| match part.join() {
            Ok(sum) => sum,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        sums.fold(0, u64::wrapping_add)
    })
}

/// The share of units from number `first` on.
fn of_part(ty: GgmlType, first: u64, bytes: &[u8]) -> u64 {
    match unit(ty) {
        4 => sum(first, bytes, |b: [u8; 4]| u32::from_le_bytes(b).into()),
        2 => sum(first, bytes, |b: [u8; 2]| u16::from_le_bytes(b).into()),
        _ => sum(first, bytes, |[b]: [u8; 1]| b.into()),
    }
}

fn sum<const N: usize>(first: u64, bytes: &[u8], value: impl Fn([u8; N]) -> u64) -> u64 {
    let (units, _) = bytes.as_chunks::<N>();
    units.iter().zip(first..).fold(0, |sum, (unit, i)| {
        let word = i.wrapping_mul(GAMMA).wrapping_add(value(*unit));
        sum.wrapping_add(mix(word))
    })
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

    #[test]
    fn one_unit_that_differs_shows_and_so_do_two_that_changed_places() {
        for ty in [GgmlType::MXFP4, GgmlType::Q8_0, GgmlType::Q4_K] {
            let bytes: Vec<u8> = (0..20 * ty.block_bytes())
                .map(|i| (i * 37 % 251) as u8)
                .collect();
            let whole = fingerprint(ty, &bytes);
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 1;
                assert_ne!(fingerprint(ty, &other), whole, "{ty}, byte {at}");
            }
            let mut other = bytes.clone();
            other.rotate_left(unit(ty));
            assert_ne!(fingerprint(ty, &other), whole, "{ty}");
        }
    }

    /// By hand: the first outputs of the reference generator for seed 0 (`splitmix64.c` by S. Vigna) are `mix(γ)` and `mix(2 γ)`.
    #[test]
    fn zeros_are_the_sum_of_the_generators_outputs() {
        let outputs = 0xE220_A839_7B1D_CDAFu64.wrapping_add(0x6E78_9E6A_A1B9_65F4);
        assert_eq!(fingerprint(GgmlType::F32, &[0; 12]), outputs);
    }

    #[test]
    fn parts_of_any_size_make_the_same_sum() {
        let bytes: Vec<u8> = (0..PART + 1000).map(|i| (i * 7 % 253) as u8).collect();
        for ty in [GgmlType::F32, GgmlType::F16] {
            let whole = of_part(ty, 0, &bytes);
            assert_eq!(fingerprint(ty, &bytes), whole);
            let (head, tail) = bytes.split_at(4000);
            let rest = of_part(ty, (4000 / unit(ty)) as u64, tail);
            assert_eq!(of_part(ty, 0, head).wrapping_add(rest), whole);
        }
    }
}
