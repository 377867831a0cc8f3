//! Products with a 4-bit matrix, decoded as they are multiplied, beside those of
//! `matrixmultiply` with the same matrix as f32: `cargo bench -p estream-runtime`.
//! Elements a second are multiply-adds a second; two floating-point operations each.

#![expect(unsafe_code, reason = "the peer takes pointers")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use estream_runtime::backend::cpu::{Cpu, Matrix, Simd, SimdPath};

const ROWS: usize = 1024;
const COLS: usize = 2048;

fn matmul(c: &mut Criterion) {
    let layouts = [
        "q4_0.t32.direct",
        "q4_0.t32.pair",
        "q4_1.t32.direct",
        "iq4_nl.t32.direct",
        "mxfp4.t32.direct",
        "q8_0.t32",
        "f16.t32",
        "f32.rows",
        "q6_k.rows",
    ];
    let mut group = c.benchmark_group("matmul 2048x1024");
    for tokens in [1, 4, 16, 128, 512] {
        group.throughput(Throughput::Elements((tokens * ROWS * COLS) as u64));
        let x: Vec<f32> = (0..tokens * COLS).map(|i| (i % 7) as f32 - 3.0).collect();
        let mut out = vec![0.0f32; tokens * ROWS];

        let dense: Vec<f32> = (0..ROWS * COLS).map(|i| (i % 15) as f32 - 7.0).collect();
        group.bench_function(BenchmarkId::new("matrixmultiply f32", tokens), |b| {
            b.iter(|| {
                // SAFETY: the three buffers have exactly these dimensions and strides.
                unsafe {
                    matrixmultiply::sgemm(
                        tokens,
                        COLS,
                        ROWS,
                        1.0,
                        x.as_ptr(),
                        COLS.cast_signed(),
                        1,
                        dense.as_ptr(),
                        1,
                        COLS.cast_signed(),
                        0.0,
                        out.as_mut_ptr(),
                        ROWS.cast_signed(),
                        1,
                    );
                }
            });
        });
        for name in layouts {
            let layout: estream_schemas::layout::Layout = name.parse().expect("a layout's name");
            let len = layout.bytes(ROWS as u64, COLS as u64).expect("whole tiles");
            // Scales of about 0.01 whatever is read as one.
            let bytes: Vec<u8> = [0x1f, 0x21]
                .into_iter()
                .cycle()
                .take(len as usize)
                .collect();
            let matrix = Matrix::new(layout, ROWS, COLS, &bytes).expect("bytes enough");
            for simd in [SimdPath::Avx2, SimdPath::Avx512]
                .into_iter()
                .filter_map(Simd::new)
            {
                if simd != Simd::detect() && name != layouts[0] {
                    continue;
                }
                let mut cpu = Cpu::new(1, simd).expect("no thread but this");
                let id = BenchmarkId::new(format!("{name} {:?}", simd.path()), tokens);
                group.bench_function(id, |b| b.iter(|| cpu.linear(&x, &matrix, &mut out)));
            }
        }
    }
    group.finish();
}

criterion_group!(benches, matmul);
criterion_main!(benches);
