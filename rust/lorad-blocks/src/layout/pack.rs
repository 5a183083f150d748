//! Writing a module's weights where the layout says.

use super::{AdapterLayout, Chunk, LayoutError, Part};

/// What one module has. The bytes of A and B are little-endian elements of the layout's type.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModuleBytes<'a> {
    /// `[rank, in]`.
    pub a: &'a [u8],
    /// PEFT's `[out, rank]`.
    pub b: &'a [u8],
    /// `[out]`; empty if the module has none.
    pub gain: &'a [f32],
    /// `[out]`; empty if the module has none.
    pub bias: &'a [f32],
}

impl AdapterLayout {
    /// Writes one module into `image` (u8 `[pages, page_bytes]`).
    pub fn pack(
        &self,
        image: &mut [u8],
        layer: u32,
        module: u32,
        bytes: ModuleBytes<'_>,
    ) -> Result<(), LayoutError> {
        let span = self.span(layer, module).ok_or(LayoutError::NoSuchModule { layer, module })?;
        let (size, rank) = (self.element.bytes(), span.shape.rank as usize);
        let (inputs, outputs) = (span.shape.in_features as usize, span.shape.out_features as usize);
        let ModuleBytes { a, b, gain, bias } = bytes;
        let length = |what, expected, got| match expected == got {
            true => Ok(()),
            false => Err(LayoutError::Bytes { what, expected, got }),
        };
        length("image", self.pages() * self.page_bytes, image.len())?;
        length("a", rank * inputs * size, a.len())?;
        length("b", rank * outputs * size, b.len())?;
        length("gain", if span.shape.vectors.gain { outputs * 4 } else { 0 }, gain.len() * 4)?;
        length("bias", if span.shape.vectors.bias { outputs * 4 } else { 0 }, bias.len() * 4)?;
        for chunk in self.a_chunks(span) {
            let (begin, bytes) = (chunk.begin as usize * size, chunk.len as usize * size);
            let target = self.chunk_bytes_mut(image, chunk);
            for (row, target) in target.chunks_exact_mut(bytes).enumerate() {
                let start = (chunk.rank_begin as usize + row) * inputs * size + begin;
                target.copy_from_slice(&a[start..start + bytes]);
            }
        }
        for chunk in self.b_chunks(span) {
            let bytes = chunk.len as usize * size;
            let target = self.chunk_bytes_mut(image, chunk);
            for (row, target) in target.chunks_exact_mut(bytes).enumerate() {
                for (column, target) in target.chunks_exact_mut(size).enumerate() {
                    let out = chunk.begin as usize + column;
                    let start = (out * rank + chunk.rank_begin as usize + row) * size;
                    target.copy_from_slice(&b[start..start + size]);
                }
            }
        }
        for chunk in self.vector_chunks(span) {
            let from = if chunk.part == Part::Gain { gain } else { bias };
            let target = self.chunk_bytes_mut(image, chunk).chunks_exact_mut(4);
            target
                .zip(&from[chunk.begin as usize..])
                .for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
        }
        Ok(())
    }

    fn chunk_bytes_mut<'image>(&self, image: &'image mut [u8], chunk: &Chunk) -> &'image mut [u8] {
        let start = chunk.page as usize * self.page_bytes + chunk.offset as usize;
        &mut image[start..start + self.chunk_bytes(chunk)]
    }
}
