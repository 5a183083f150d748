//! A model's shape, and what its work costs: as a machine's speed lets expect, or as it was measured.

use lorad_blocks::layout::{AdapterLayout, Element, ModuleShape, Vectors};
use lorad_sched::Costs;

use crate::error::SimError;

/// What of a model decides how long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the MLP.
    pub intermediate: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Rows of the head.
    pub vocab: u32,
    /// Bits of a weight, scales included, times 1000.
    pub weight_millibits: u32,
    /// Bits of a weight of the head, times 1000.
    pub head_millibits: u32,
    /// Number type of the KV cache.
    pub kv: Element,
    /// Number type of adapters.
    pub adapter: Element,
}

/// What of a machine decides how long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes per second that a step reads from memory.
    pub memory_bytes_s: u64,
    /// Multiplications and additions per second, as matmuls reach them.
    pub flops_s: u64,
    /// Bytes per second of a page-in.
    pub copy_bytes_s: u64,
    /// Nanoseconds of each page-in, whatever its size.
    pub copy_ns: u64,
    /// Nanoseconds of each step, whatever it computes: launches, the host.
    pub step_ns: u64,
}

/// A typical request: attention of a prompt is arithmetic, that of decoding is reading the KV, and [`Costs`] has one
/// figure for both. It becomes their mean over this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Typical {
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens of its answer.
    pub answer: u32,
}

/// Where the costs of a model come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// They follow from the shape.
    Machine(Machine),
    /// They were fitted to a real worker, with pages of so many tokens.
    Fitted {
        /// Tokens of a page.
        page_tokens: u32,
        /// The fit.
        costs: Costs,
    },
}

/// A model on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name in scenarios.
    pub name: &'static str,
    /// The model.
    pub shape: Shape,
    /// How fast it is.
    pub speed: Speed,
}

/// SmolLM2-135M: 4 bits with a head of 8.
const SMOLLM2: Shape = Shape {
    layers: 30,
    hidden: 576,
    intermediate: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocab: 49_152,
    weight_millibits: 5000,
    head_millibits: 8500,
    kv: Element::BF16,
    adapter: Element::BF16,
};

/// SmolLM2-135M, Q4_1 with a Q8_0 head, on two cores with AVX-512 at 76 GB/s. A decode step of one row takes 2.6 ms, of
/// 32 rows 19 ms, as measured with the best operator for each shape.
pub const SMOLLM2_2CORE: Model = Model {
    name: "smollm2-135m-2core",
    shape: SMOLLM2,
    speed: Speed::Machine(Machine {
        memory_bytes_s: 76_000_000_000,
        flops_s: 520_000_000_000,
        copy_bytes_s: 8_000_000_000,
        copy_ns: 50_000,
        step_ns: 800_000,
    }),
};

/// SmolLM2-135M, Q4_1 with a Q8_0 head, on two cores of an AMD EPYC (family 25 model 1; AVX2, no AVX-512), a shared virtual
/// machine: [`Costs::default`], which `benches/costs` fitted to lorad's worker on 2026-11-29. docs/costs.md has how far it is off.
pub const SMOLLM2_2CORE_AVX2: Model = Model {
    name: "smollm2-135m-2core-avx2",
    shape: SMOLLM2,
    speed: Speed::Fitted { page_tokens: 16, costs: Costs::FITTED },
};

/// An 8B of Llama 3's shape in bf16 on one H200: three quarters of its memory's rate and half its matmul rate.
pub const LLAMA_8B_H200: Model = Model {
    name: "llama-8b-h200",
    shape: Shape {
        layers: 32,
        hidden: 4096,
        intermediate: 14_336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
        weight_millibits: 16_000,
        head_millibits: 16_000,
        kv: Element::BF16,
        adapter: Element::BF16,
    },
    speed: Speed::Machine(Machine {
        memory_bytes_s: 3_600_000_000_000,
        flops_s: 495_000_000_000_000,
        copy_bytes_s: 50_000_000_000,
        copy_ns: 30_000,
        step_ns: 300_000,
    }),
};

/// All models that scenarios can name.
pub const MODELS: [Model; 3] = [SMOLLM2_2CORE, SMOLLM2_2CORE_AVX2, LLAMA_8B_H200];

/// Pages are a multiple of this many bytes, as the engine's are.
const PAGE_ALIGN_BYTES: u64 = 64;

fn ns(work: u64, per_second: u64) -> u64 {
    let ns = (u128::from(work) * 1_000_000_000).div_ceil(u128::from(per_second.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

impl Shape {
    /// In and out widths of a layer's seven linear modules.
    pub fn modules(&self) -> [(u32, u32); 7] {
        let (query, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (hidden, wide) = (self.hidden, self.intermediate);
        [
            (hidden, query),
            (hidden, kv),
            (hidden, kv),
            (query, hidden),
            (hidden, wide),
            (hidden, wide),
            (wide, hidden),
        ]
    }

    /// Weights of all layers, the head not among them.
    pub fn layer_weights(&self) -> u64 {
        let layer: u64 = self.modules().iter().map(|&(i, o)| u64::from(i) * u64::from(o)).sum();
        layer * u64::from(self.layers)
    }

    /// Weights of the head.
    pub fn head_weights(&self) -> u64 {
        u64::from(self.hidden) * u64::from(self.vocab)
    }

    /// Bytes of a token's keys and values.
    pub fn token_kv_bytes(&self) -> u64 {
        let values = 2 * u64::from(self.layers) * u64::from(self.kv_heads) * u64::from(self.head_dim);
        values * self.kv.bytes() as u64
    }

    /// Bytes of a page with the KV of `page_tokens` tokens.
    pub fn page_bytes(&self, page_tokens: u32) -> u64 {
        (self.token_kv_bytes() * u64::from(page_tokens)).next_multiple_of(PAGE_ALIGN_BYTES)
    }

    /// Pages of an adapter of this rank on all linear modules, laid out as the engine does. Refused where the layout
    /// refuses it: rank 0, pages that are too large.
    pub fn adapter_pages(&self, rank: u32, page_tokens: u32) -> Result<u32, SimError> {
        let mut modules = Vec::new();
        for layer in 0..self.layers {
            for (module, (in_features, out_features)) in (0..).zip(self.modules()) {
                let (scale, vectors) = (1.0, Vectors::default());
                modules.push(ModuleShape { layer, module, in_features, out_features, rank, scale, vectors });
            }
        }
        let page_bytes = usize::try_from(self.page_bytes(page_tokens)).unwrap_or(usize::MAX);
        let layout = AdapterLayout::new(page_bytes, self.adapter, &modules)?;
        Ok(u32::try_from(layout.pages()).unwrap_or(u32::MAX))
    }
}

impl Model {
    /// The model of this name.
    pub fn named(name: &str) -> Option<Self> {
        MODELS.into_iter().find(|model| model.name == name)
    }

    /// What its work costs, in nanoseconds.
    pub fn costs(&self, page_tokens: u32, typical: Typical) -> Costs {
        match &self.speed {
            Speed::Machine(machine) => self.shape.costs(machine, page_tokens, typical),
            Speed::Fitted { page_tokens: fitted, costs } => costs.with_pages(page_tokens, *fitted),
        }
    }
}

impl Shape {
    fn costs(&self, machine: &Machine, page_tokens: u32, typical: Typical) -> Costs {
        let shape = self;
        let (layers, head, page) =
            (shape.layer_weights(), shape.head_weights(), shape.page_bytes(page_tokens));
        let weight_bits = layers * u64::from(shape.weight_millibits) + head * u64::from(shape.head_millibits);
        let page_weights = page / shape.adapter.bytes() as u64;

        let (prompt, answer) = (u64::from(typical.prompt), u64::from(typical.answer));
        let prompt_pairs = prompt * (prompt + 1) / 2;
        let answer_pairs = answer * prompt + answer * (answer + 1) / 2;
        // scores and their weighted sum
        let pair_flops = 4 * u64::from(shape.heads) * u64::from(shape.head_dim) * u64::from(shape.layers);
        let pairs_ns = ns(pair_flops * prompt_pairs, machine.flops_s)
            + ns(shape.token_kv_bytes() * answer_pairs, machine.memory_bytes_s);

        Costs {
            step_ns: machine.step_ns + ns(weight_bits / 8000, machine.memory_bytes_s),
            token_ns: ns(2 * layers, machine.flops_s),
            sample_ns: ns(2 * head, machine.flops_s),
            context_ns: pairs_ns.div_ceil((prompt_pairs + answer_pairs).max(1)),
            adapter_page_ns: ns(page, machine.memory_bytes_s),
            adapter_token_page_ns: ns(2 * page_weights, machine.flops_s),
            page_in_ns: machine.copy_ns,
            page_in_page_ns: ns(page, machine.copy_bytes_s),
            // a roofline: what is read for each step is read whatever it computes, and copies have an engine of their own
            few_tokens: 0,
            many_ns: 0,
            head_ns: 0,
            beside_page_ns: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPICAL: Typical = Typical { prompt: 128, answer: 64 };

    #[test]
    fn the_small_model_costs_what_was_measured() {
        let shape = SMOLLM2_2CORE.shape;
        assert_eq!(shape.layer_weights(), 106_168_320);
        assert_eq!(shape.page_bytes(16), 368_640);
        let costs = SMOLLM2_2CORE.costs(16, TYPICAL);
        let decode = |rows: u64| costs.step_ns + rows * costs.row_ns(150, 1, true, 0);
        assert!((2_300_000..2_900_000).contains(&decode(1)), "{}", decode(1));
        assert!((17_000_000..21_000_000).contains(&decode(32)), "{}", decode(32));
    }

    #[test]
    fn a_fit_is_taken_as_it_is_and_larger_pages_cost_more() {
        let fit = |page_tokens| SMOLLM2_2CORE_AVX2.costs(page_tokens, TYPICAL);
        assert_eq!(fit(16), Costs::default());
        let (one, two) = (fit(16), fit(32));
        assert_eq!(two.adapter_page_ns, 2 * one.adapter_page_ns);
        assert_eq!(two.page_in_ns(10), one.page_in_ns(20));
        assert_eq!((two.step_ns, two.token_ns, two.page_in_ns), (one.step_ns, one.token_ns, one.page_in_ns));
    }

    #[test]
    fn adapters_take_the_pages_of_their_rank() {
        let pages = |rank| SMOLLM2_2CORE.shape.adapter_pages(rank, 16).unwrap();
        // 9.77 MB of rank 16 in pages of 369 kB
        assert!((27..=28).contains(&pages(16)), "{}", pages(16));
        assert!(pages(1) <= 2 && pages(128) >= 8 * pages(16) - 8);
        assert!(matches!(SMOLLM2_2CORE.shape.adapter_pages(0, 16), Err(SimError::Layout(_))));
        let large = LLAMA_8B_H200.shape;
        assert_eq!((large.page_bytes(16), large.adapter_pages(16, 16).unwrap()), (2 << 20, 42));
    }

    #[test]
    fn the_large_model_decodes_at_the_rate_of_its_memory() {
        let costs = LLAMA_8B_H200.costs(16, TYPICAL);
        // 15 GB at 3.6 TB/s
        assert!((4_000_000..5_000_000).contains(&costs.step_ns), "{}", costs.step_ns);
        assert_eq!(Model::named("llama-8b-h200"), Some(LLAMA_8B_H200));
        assert_eq!(Model::named("nothing"), None);
    }
}
