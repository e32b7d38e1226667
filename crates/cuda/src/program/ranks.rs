//! Where ranks meet: what is summed and gathered. How, [`crate::collective`] decides.

use glim_plan::{GgmlType, Op};

use super::Builder;
use crate::collective::{Gathering, Part, Sum, Wire};

/// The type on the wire.
fn wire(ty: GgmlType) -> Result<Wire, String> {
    match ty {
        GgmlType::F32 => Ok(Wire::F32),
        GgmlType::BF16 => Ok(Wire::Bf16),
        other => Err(format!(
            "{other} does not travel between GPUs: F32 and BF16 do"
        )),
    }
}

/// Whether no collective of the plan comes after this one.
fn is_last(b: &Builder<'_>, op: &Op) -> bool {
    let all = b.plan().ops.iter().flat_map(|node| node.op.parts());
    all.filter_map(Op::collective).next_back() == op.collective()
}

pub(super) fn all_reduce(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::AllReduce {
        wire: ty, x, out, ..
    } = op
    else {
        return Err("is not an AllReduce".into());
    };
    let sum = Sum {
        x: *x,
        out: *out,
        width: b.decl(*x).row_elements(),
        wire: wire(*ty)?,
        is_last: is_last(b, op),
    };
    b.ranks().sum(b, &sum)
}

pub(super) fn all_gather(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::AllGather {
        wire: ty, gathers, ..
    } = op
    else {
        return Err("is not an AllGather".into());
    };
    // i32 travels as it is, whatever the wire.
    let is_float = |g: &glim_plan::Gather| b.decl(g.x).dtype == GgmlType::F32;
    let wire = match gathers.iter().any(is_float) {
        true => wire(*ty)?,
        false => Wire::F32,
    };
    let mut parts = Vec::with_capacity(gathers.len());
    for g in gathers {
        let (first, rows) = (b.decl(gathers[0].out), b.decl(g.out));
        if (rows.rows, b.rows(g.out)) != (first.rows, b.rows(gathers[0].out)) {
            let (one, other) = (&first.name, &rows.name);
            return Err(format!("{one} and {other} do not have the same rows"));
        }
        let whole: usize = g.lens.iter().sum();
        let inner = rows.row_elements().checked_div(whole).unwrap_or(0);
        parts.push(Part {
            x: g.x,
            out: g.out,
            widths: g.lens.iter().map(|len| len * inner).collect(),
            is_float: is_float(g),
        });
    }
    let gathering = Gathering {
        parts,
        wire,
        is_last: is_last(b, op),
    };
    b.ranks().gather(b, &gathering)
}
