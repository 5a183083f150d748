//! LoRA on an embedding: the product with one-hot rows, so `x · Aᵀ` is a column of A for each token.

use lorad_blocks::layout::Chunk;

use super::delta::{Delta, Target};
use super::units::Unit;
use super::{Adapters, Modules};
use crate::cpu::Cpu;
use crate::error::{index, length, require};
use crate::number::Number;
use crate::shared::{Arena, Parts};
use crate::{with_number, OpError};

/// Adds every group's adapter to `y` f32 `[n, hidden]`, the rows of `ids` in an embedding of `vocab` rows: `y[t] += scale ·
/// A[:, ids[t]]ᵀ · B`, then its vectors. `module`: one, whose A is `[rank, vocab]`. Returns the groups whose tag isn't
/// their slot's: their rows of y are NaN.
pub fn lora_embed(
    cpu: &Cpu,
    y: &mut [f32],
    hidden: usize,
    ids: &[i32],
    vocab: usize,
    adapters: &Adapters<'_>,
    module: &Modules<'_>,
) -> Result<Vec<usize>, OpError> {
    require(hidden > 0, "hidden must be positive", hidden)?;
    length("y", ids.len() * hidden, y.len())?;
    length("modules", 1, module.numbers.len())?;
    for &id in ids {
        index("ids", id, vocab)?;
    }
    let delta = Delta::new(cpu, adapters, module, ids.len(), vocab, hidden, usize::MAX)?;
    let units = &delta.units.all;
    let parts = Parts::new(y);
    cpu.pool.run(units.len(), &|number| {
        let unit = &units[number];
        let shrink = |s: &mut [f32]| {
            with_number!(unit.element(), N => gather::<N>(delta.arena, unit, &ids[unit.tokens.clone()], s));
        };
        // SAFETY: units have disjoint tokens.
        unsafe { delta.run_whole(unit, &shrink, Target { y: &parts, at: 0, stride: hidden }) }
    });
    delta.poison(y, hidden);
    Ok(delta.wrong())
}

/// scale · A's columns, for each rank tile `[tokens, rows]`.
fn gather<N: Number>(arena: &Arena<'_>, unit: &Unit<'_>, ids: &[i32], s: &mut [f32]) {
    let scale = unit.span.shape.scale;
    for (token, id) in ids.iter().enumerate() {
        let column = *id as usize;
        let holds =
            |chunk: &&Chunk| (chunk.begin as usize..(chunk.begin + chunk.len) as usize).contains(&column);
        for chunk in unit.a_chunks().iter().filter(holds) {
            let (weights, rows, len) = (unit.weights(arena, chunk), chunk.rows as usize, chunk.len as usize);
            let to = &mut s[chunk.rank_begin as usize * ids.len() + token * rows..][..rows];
            for (row, to) in to.iter_mut().enumerate() {
                *to = scale * N::get(weights, row * len + column - chunk.begin as usize);
            }
        }
    }
}
