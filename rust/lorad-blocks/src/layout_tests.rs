use super::*;

fn shape(layer: u32, module: u32, in_features: u32, out_features: u32, rank: u32) -> ModuleShape {
    ModuleShape { layer, module, in_features, out_features, rank, scale: 1.0, vectors: Vectors::default() }
}

/// Numbers from a seed: splitmix64.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u32 {
        (self.next() % bound) as u32
    }
}

#[test]
fn every_element_has_one_place_and_survives_packing() {
    for seed in 0..60 {
        let mut seeded = Seeded(seed);
        let element = [Element::F32, Element::F16, Element::BF16][seed as usize % 3];
        let page_bytes = 64 * (1 + seeded.below(40) as usize);
        let mut shapes = Vec::new();
        for layer in 0..4 {
            for module in 0..3 {
                if seeded.below(3) > 0 {
                    let vectors = Vectors { gain: seeded.below(3) == 0, bias: seeded.below(3) == 0 };
                    let rank = seeded.below(20) + u32::from(!vectors.any());
                    let plain = shape(layer, module, 1 + seeded.below(90), 1 + seeded.below(90), rank);
                    shapes.push(ModuleShape { vectors, ..plain });
                }
            }
        }
        shapes.push(shape(5, 0, 7, 5, 3));
        let layout = AdapterLayout::new(page_bytes, element, &shapes).unwrap();
        let size = element.bytes();
        let mut image = vec![0u8; layout.pages() * page_bytes];
        let mut taken = vec![false; image.len()];
        for chunk in layout.chunks() {
            let bytes = layout.chunk_bytes(chunk);
            assert!(
                (chunk.offset as usize).is_multiple_of(ALIGN_BYTES)
                    && chunk.offset as usize + bytes <= page_bytes
            );
            let start = chunk.page as usize * page_bytes + chunk.offset as usize;
            assert!(taken[start..start + bytes].iter().all(|taken| !taken), "seed {seed}: bytes given twice");
            taken[start..start + bytes].fill(true);
        }
        for (index, shape) in shapes.iter().enumerate() {
            let (rank, inputs, outputs) =
                (shape.rank as usize, shape.in_features as usize, shape.out_features as usize);
            let fill = |bytes: usize, salt: u64| -> Vec<u8> {
                let mut seeded = Seeded(seed * 1000 + index as u64 * 4 + salt);
                (0..bytes).map(|_| seeded.next() as u8).collect()
            };
            let (a, b) = (fill(rank * inputs * size, 0), fill(rank * outputs * size, 1));
            let floats = |is: bool, salt| -> Vec<f32> {
                let bytes = fill(if is { outputs * 4 } else { 0 }, salt);
                bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
            };
            let (gain, bias) = (floats(shape.vectors.gain, 2), floats(shape.vectors.bias, 3));
            let bytes = ModuleBytes { a: &a, b: &b, gain: &gain, bias: &bias };
            layout.pack(&mut image, shape.layer, shape.module, bytes).unwrap();
            let span = layout.span(shape.layer, shape.module).unwrap();
            let mut seen = 0;
            let tiles = layout.a_chunks(span).iter().chain(layout.b_chunks(span));
            for chunk in tiles.chain(layout.vector_chunks(span)) {
                let size = chunk.part.element(element).bytes();
                for row in 0..chunk.rows as usize {
                    for column in 0..chunk.len as usize {
                        let at = chunk.page as usize * page_bytes
                            + chunk.offset as usize
                            + (row * chunk.len as usize + column) * size;
                        let (j, c) = (chunk.rank_begin as usize + row, chunk.begin as usize + column);
                        let source = match chunk.part {
                            Part::A => &a[(j * inputs + c) * size..],
                            Part::B => &b[(c * rank + j) * size..],
                            Part::Gain => &gain[c].to_le_bytes(),
                            Part::Bias => &bias[c].to_le_bytes(),
                        };
                        assert_eq!(image[at..at + size], source[..size]);
                        seen += 1;
                    }
                }
            }
            let vectors = usize::from(shape.vectors.gain) + usize::from(shape.vectors.bias);
            assert_eq!(seen, rank * (inputs + outputs) + vectors * outputs);
        }
    }
}

#[test]
fn the_first_pages_hold_the_first_layers() {
    let shapes: Vec<_> =
        [0, 1, 4].iter().flat_map(|&layer| (0..2).map(move |m| shape(layer, m, 40, 24, 9))).collect();
    let vectors = Vectors { gain: true, bias: true };
    let shapes: Vec<_> = shapes.into_iter().map(|shape| ModuleShape { vectors, ..shape }).collect();
    let layout = AdapterLayout::new(256, Element::BF16, &shapes).unwrap();
    assert_eq!(layout.layer_pages().len(), 5);
    for (layer, pages) in layout.layer_pages().iter().enumerate() {
        for span in layout.spans().iter().filter(|span| span.shape.layer as usize <= layer) {
            let last = layout.vector_chunks(span).last().unwrap();
            assert!(last.page < *pages);
        }
    }
    assert_eq!(layout.layer_pages()[4] as usize, layout.pages());
    assert_eq!(layout.layer_pages()[2], layout.layer_pages()[1]);
    assert!(layout.span(2, 0).is_none() && layout.span(4, 2).is_none() && layout.span(9, 0).is_none());
}

#[test]
fn an_adapter_costs_its_true_rank() {
    for (rank, rows) in [(1, 1), (8, 8), (9, 9), (128, 128)] {
        let layout = AdapterLayout::new(1 << 20, Element::F16, &[shape(0, 0, 576, 1536, rank)]).unwrap();
        assert_eq!(layout.weight_bytes(), rows * (576 + 1536) * 2);
        assert_eq!(layout.pages(), 1);
        let vectors = Vectors { gain: true, bias: true };
        let shape = ModuleShape { vectors, ..shape(0, 0, 576, 1536, rank) };
        let layout = AdapterLayout::new(1 << 20, Element::F16, &[shape]).unwrap();
        assert_eq!(layout.weight_bytes(), rows * (576 + 1536) * 2 + 2 * 1536 * 4);
    }
}

#[test]
fn hostile_shapes_are_refused_by_name() {
    let one = |page_bytes, shapes: &[ModuleShape]| {
        AdapterLayout::new(page_bytes, Element::F32, shapes).unwrap_err()
    };
    for page_bytes in [0, 1, 63, 65, 1 << 31, usize::MAX, usize::MAX - 63] {
        assert_eq!(one(page_bytes, &[shape(0, 0, 1, 1, 1)]), LayoutError::PageBytes { page_bytes });
    }
    assert_eq!(one(64, &[]), LayoutError::NoModules);
    assert!(matches!(one(64, &[shape(0, 0, 0, 1, 1)]), LayoutError::Shape { .. }));
    assert!(matches!(one(64, &[shape(0, 0, 1, 1, 0)]), LayoutError::Shape { .. }));
    let infinite = ModuleShape { scale: f32::INFINITY, ..shape(0, 0, 1, 1, 1) };
    assert!(matches!(one(64, &[infinite]), LayoutError::Shape { .. }));
    assert_eq!(
        one(64, &[shape(3, 1, 1, 1, 1), shape(3, 1, 2, 2, 2)]),
        LayoutError::Duplicate { layer: 3, module: 1 }
    );
    let most = u32::MAX;
    let vectors = Vectors { gain: true, bias: false };
    let wide = ModuleShape { vectors, ..shape(0, 0, 1, most, 0) };
    assert!(matches!(one(64, &[wide]), LayoutError::TooLarge { .. }));
    for shape in [shape(0, 0, most, most, most), shape(0, 0, 1, 1, most), shape(most, 0, 1, 1, 1)] {
        assert!(matches!(one(64, &[shape]), LayoutError::TooLarge { .. }));
        assert!(matches!(one((1 << 31) - 64, &[shape]), LayoutError::TooLarge { .. }));
    }
    let layout = AdapterLayout::new(64, Element::F32, &[shape(0, 0, 4, 4, 2)]).unwrap();
    let mut image = vec![0; layout.pages() * 64];
    let good = ModuleBytes { a: &[0; 32], b: &[0; 32], ..ModuleBytes::default() };
    assert!(layout.pack(&mut image, 0, 0, good).is_ok());
    for (what, bytes) in
        [("gain", ModuleBytes { gain: &[0.0; 4], ..good }), ("bias", ModuleBytes { bias: &[0.0; 4], ..good })]
    {
        let expected = LayoutError::Bytes { what, expected: 0, got: 16 };
        assert_eq!(layout.pack(&mut image, 0, 0, bytes), Err(expected));
    }
    assert!(matches!(
        layout.pack(&mut image, 0, 1, ModuleBytes::default()),
        Err(LayoutError::NoSuchModule { .. })
    ));
    assert!(matches!(
        layout.pack(&mut image, 0, 0, ModuleBytes { b: &[0; 31], ..good }),
        Err(LayoutError::Bytes { what: "b", .. })
    ));
    assert!(matches!(layout.pack(&mut [], 0, 0, good), Err(LayoutError::Bytes { what: "image", .. })));
}
