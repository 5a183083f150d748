//! What computes: an instruction level and a thread pool.

use crate::pool::Pool;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, Tiles};
use crate::OpError;

/// Environment variable that forces a level, by its name.
pub const LEVEL_VARIABLE: &str = "LORAD_CPU";

/// Which twin of an operator runs.
#[derive(Clone, Copy, Debug)]
pub enum Level {
    /// Plain Rust: the definition.
    Portable,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 with VNNI, and tiles (AMX) if its proof has them.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx2, Avx512),
}

impl Level {
    /// All that this CPU has, the best last.
    pub fn all() -> Vec<Self> {
        let mut found = vec![Level::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(avx2) = Avx2::detect() {
                found.push(Level::Avx2(avx2));
                let avx512 = Avx512::detect();
                let tiles = avx512.and_then(Avx512::with_tiles);
                found.extend([avx512, tiles].into_iter().flatten().map(|proof| Level::Avx512(avx2, proof)));
            }
        }
        found
    }

    /// The best that this CPU has.
    pub fn best() -> Self {
        Self::all().pop().unwrap_or(Level::Portable)
    }

    /// The level called `name`; an error if it's unknown or this CPU lacks it.
    pub fn from_name(name: &str) -> Result<Self, OpError> {
        let found = Self::all().into_iter().find(|level| level.name() == name);
        found.ok_or_else(|| OpError::Name { what: LEVEL_VARIABLE, got: name.to_owned() })
    }

    /// The level that the environment names, else the best.
    pub fn from_environment() -> Result<Self, OpError> {
        match std::env::var(LEVEL_VARIABLE) {
            Ok(name) if !name.is_empty() => Self::from_name(&name),
            _ => Ok(Self::best()),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_, avx512) if avx512.tiles().is_some() => "amx",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(..) => "avx512",
        }
    }

    /// The proof of tiles, where this level has them.
    #[cfg(target_arch = "x86_64")]
    pub fn tiles(self) -> Option<(Avx512, Tiles)> {
        match self {
            Level::Avx512(_, avx512) => avx512.tiles().map(|tiles| (avx512, tiles)),
            _ => None,
        }
    }

    /// The proof of AVX2, for operators whose twins are no wider.
    #[cfg(target_arch = "x86_64")]
    pub fn avx2(self) -> Option<Avx2> {
        match self {
            Level::Portable => None,
            Level::Avx2(avx2) | Level::Avx512(avx2, _) => Some(avx2),
        }
    }
}

/// An instruction level and a thread pool; passed to every operator.
pub struct Cpu {
    /// Which twin runs.
    pub level: Level,
    /// Who runs it.
    pub pool: Pool,
}

impl Cpu {
    /// `threads`: including the caller's.
    pub fn new(level: Level, threads: usize) -> Self {
        Self { level, pool: Pool::new(threads) }
    }
}

/// Instruction sets that operators use now or will use, and whether this CPU has them.
pub fn features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    return vec![
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx_vnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512_vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512_bf16", is_x86_feature_detected!("avx512bf16")),
        ("amx_bf16", Tiles::detect().is_some()),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}
