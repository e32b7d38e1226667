//! The table: every operation, every weight type, every shape.
//!
//! A new operation or weight type is a line here; a new backend is a line in that backend's tests ([`super::check`]).

mod attention;
mod head;
mod moe;
mod products;
mod rows;

use glim_plan::GgmlType;

use super::case::Case;
use super::layout::Layout;

/// Name of a result whose rows are written up to their own position only.
pub(super) const SCORES: &str = "scores";

const F32: GgmlType = GgmlType::F32;
const I32: GgmlType = GgmlType::I32;

/// All cases.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = products::cases();
    cases.extend(moe::cases());
    cases.extend(attention::cases());
    cases.extend(rows::cases());
    cases.extend(head::cases());
    cases
}

/// Every layout.
fn layouts() -> [Layout; 5] {
    [
        Layout::one(),
        Layout::decode(),
        Layout::odd(),
        Layout::ragged(),
        Layout::full(),
    ]
}

/// Layouts for a weight type: all of them for a type of each family, two for the others.
fn layouts_for(ty: GgmlType) -> Vec<Layout> {
    use GgmlType as T;
    match ty {
        T::F32 | T::BF16 | T::Q8_0 | T::Q4_1 | T::Q4_K | T::Q6_K | T::IQ4_XS => layouts().to_vec(),
        _ => vec![Layout::one(), Layout::ragged()],
    }
}

/// Widths of rows for a weight type: one block and several, or numbers that no vector divides.
fn widths(ty: GgmlType) -> [usize; 2] {
    match ty.block_elems() {
        1 => [33, 100],
        n => [n, 3 * n],
    }
}

/// The bound of one product with this weight.
fn product_bound(ty: GgmlType) -> f64 {
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => super::bounds::SUM,
        _ => super::bounds::EIGHT_BIT,
    }
}
