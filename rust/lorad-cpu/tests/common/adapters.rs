//! Random adapters in an arena, and groups of tokens that want them.

use std::sync::Arc;

use lorad_blocks::layout::{AdapterLayout, Element, ModuleBytes, ModuleShape, Vectors};
use lorad_cpu::lora::{Adapters, Groups};
use lorad_cpu::number::{f32_to_bf16, f32_to_f16};
use lorad_cpu::shared::Arena;
use lorad_cpu::table::AdapterTable;

use super::Seeded;

pub const ELEMENTS: [Element; 3] = [Element::F32, Element::F16, Element::BF16];
/// The layer that the modules are in.
pub const LAYER: u32 = 1;

/// Values as an element's bytes.
pub fn stored(element: Element, values: &[f32]) -> Vec<u8> {
    match element {
        Element::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Element::F16 => values.iter().flat_map(|x| f32_to_f16(*x).to_le_bytes()).collect(),
        Element::BF16 => values.iter().flat_map(|x| f32_to_bf16(*x).to_le_bytes()).collect(),
    }
}

/// Adapters with some of two modules, and a slot more, which is empty.
pub struct Random {
    bytes: Vec<u8>,
    page_bytes: usize,
    table: AdapterTable,
    slot: Vec<i32>,
    tag: Vec<i32>,
    pub begin: Vec<i32>,
    pub end: Vec<i32>,
}

impl Random {
    pub fn new(seeded: &mut Seeded, inputs: usize, outputs: [usize; 2], adapters: usize) -> Self {
        let page_bytes = seeded.pick(&[64, 256, 4096]);
        let mut table = AdapterTable::new(adapters + 1, page_bytes, 2, 2).unwrap();
        let (mut bytes, mut first) = (Vec::new(), 0);
        for slot in 0..adapters {
            let vectors = seeded.pick(&[
                Vectors::default(),
                Vectors { gain: true, bias: false },
                Vectors { gain: false, bias: true },
                Vectors { gain: true, bias: true },
            ]);
            // Rank 0: nothing but vectors.
            let rank = if vectors.any() && seeded.below(4) == 0 {
                0
            } else {
                seeded.pick(&[1, 2, 3, 7, 8, 9, 16, 31, 64, 70])
            };
            let shape = |module: usize| ModuleShape {
                layer: LAYER,
                module: module as u32,
                in_features: inputs as u32,
                out_features: outputs[module] as u32,
                rank: rank as u32,
                scale: 0.5,
                vectors,
            };
            let shapes = [shape(0), shape(1)];
            let shapes = seeded.pick(&[&shapes[..], &shapes[..1], &shapes[1..]]);
            let element = ELEMENTS[seeded.below(3)];
            let layout = Arc::new(AdapterLayout::new(page_bytes, element, shapes).unwrap());
            let mut image = vec![0xff; layout.pages() * page_bytes];
            for shape in shapes {
                let a = stored(element, &seeded.floats(rank * inputs));
                let b = stored(element, &seeded.floats(rank * outputs[shape.module as usize]));
                let outputs = outputs[shape.module as usize];
                let mut vector = |is: bool| match is {
                    true => seeded.floats(outputs),
                    false => Vec::new(),
                };
                let (gain, bias) = (vector(vectors.gain), vector(vectors.bias));
                let weights = ModuleBytes { a: &a, b: &b, gain: &gain, bias: &bias };
                layout.pack(&mut image, LAYER, shape.module, weights).unwrap();
            }
            let pages: Vec<i32> = (first..first + layout.pages() as i32).collect();
            first += layout.pages() as i32;
            table.set(slot as i32, 7 + slot as u32, Arc::clone(&layout), &pages).unwrap();
            bytes.extend(image);
        }
        let (mut slot, mut tag, mut begin, mut end, mut n) = (vec![], vec![], vec![], vec![], 0);
        for number in 0..=adapters {
            let tokens = seeded.pick(&[0, 1, 1, 2, 3, 4, 6, 11, 16, 23, 40, 77]);
            slot.push(number as i32);
            tag.push(7 + number as i32);
            begin.push(n);
            n += tokens;
            end.push(n);
        }
        Self { bytes, page_bytes, table, slot, tag, begin, end }
    }

    /// Tokens: those of groups, and one of the base's.
    pub fn tokens(&self) -> usize {
        self.end.last().map_or(0, |end| *end as usize) + 1
    }

    /// Groups that have theirs.
    pub fn adapters(&self) -> usize {
        self.slot.len() - 1
    }

    /// Runs with all groups.
    pub fn with<T>(&mut self, exact: bool, run: impl FnOnce(&Adapters<'_>) -> T) -> T {
        let Self { bytes, page_bytes, table, slot, tag, begin, end } = self;
        let arena = Arena::new(bytes, *page_bytes).unwrap();
        run(&Adapters { arena: &arena, table, groups: Groups { slot, tag, begin, end }, exact })
    }

    /// Runs with one token of a group.
    pub fn with_one<T>(&mut self, group: usize, run: impl FnOnce(&Adapters<'_>) -> T) -> T {
        let Self { bytes, page_bytes, table, slot, tag, .. } = self;
        let arena = Arena::new(bytes, *page_bytes).unwrap();
        let groups = Groups { slot: &slot[group..=group], tag: &tag[group..=group], begin: &[0], end: &[1] };
        run(&Adapters { arena: &arena, table, groups, exact: true })
    }
}
