//! Sixteen lanes: twins for CPUs with AVX-512.

mod lora;
mod nibbles;
mod panel;
mod tiles;
mod vnni;

pub use panel::WidePanel;
pub use tiles::{TilePanel, Tiles, TILE_ROWS};

/// Proof that this CPU has AVX-512 with its byte, 256-bit and integer-dot-product (VNNI) instructions.
#[derive(Clone, Copy, Debug)]
pub struct Avx512 {
    tiles: Option<Tiles>,
}

impl Avx512 {
    /// The proof, where it holds.
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        found.then_some(Self { tiles: None })
    }

    /// With tiles (AMX), where the CPU has them.
    pub fn with_tiles(self) -> Option<Self> {
        Tiles::detect().map(|tiles| Self { tiles: Some(tiles) })
    }

    /// The proof of tiles.
    pub fn tiles(self) -> Option<Tiles> {
        self.tiles
    }
}
