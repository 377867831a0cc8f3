//! The same code, compiled for several instruction sets and chosen once.
//!
//! Kernels are plain loops that the compiler turns into vectors. They are
//! inlined into one entry point an instruction set; what they compute is fixed
//! by the source, so all entry points give the same bits.
//!
//! Only the innermost work is a kernel: decoding a piece of a strip, multiplying with it,
//! a row of exponentials. What cuts an operator into such pieces is ordinary code that
//! exists once.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "calling code compiled for an instruction set the machine may lack"
    )
)]

/// An instruction set kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimdPath {
    /// Whatever the target guarantees: NEON on aarch64, SSE2 on x86-64 (where
    /// a fused multiply-add is a library call, and slow).
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512F too.
    Avx512,
}

impl SimdPath {
    /// All of them, the narrowest first.
    pub const ALL: [SimdPath; 3] = [SimdPath::Portable, SimdPath::Avx2, SimdPath::Avx512];
}

/// Holding one proves that this machine executes its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd(SimdPath);

/// Work to be compiled for every path. `run`, and what it calls, must be
/// `#[inline(always)]`: a function of its own is compiled for the portable path only.
pub(super) trait Kernel {
    type Output;

    fn run(self, path: SimdPath) -> Self::Output;
}

impl Simd {
    /// The widest path of this machine.
    pub fn detect() -> Simd {
        let mut paths = SimdPath::ALL.into_iter().rev();
        paths
            .find_map(Simd::new)
            .unwrap_or(Simd(SimdPath::Portable))
    }

    /// This path, if the machine has it.
    pub fn new(path: SimdPath) -> Option<Simd> {
        let present = match path {
            SimdPath::Portable => true,
            #[cfg(target_arch = "x86_64")]
            SimdPath::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            SimdPath::Avx512 => {
                Simd::new(SimdPath::Avx2).is_some() && is_x86_feature_detected!("avx512f")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        };
        present.then_some(Simd(path))
    }

    /// Which path it is.
    pub fn path(self) -> SimdPath {
        self.0
    }

    /// Runs a kernel on this path: one call, which the piece of work it does has to be worth.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Simd::new` found these features.
            SimdPath::Avx2 => unsafe { avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: likewise.
            SimdPath::Avx512 => unsafe { avx512(kernel) },
            _ => portable(kernel),
        }
    }
}

#[inline(never)]
fn portable<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(SimdPath::Portable)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(SimdPath::Avx2)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(SimdPath::Avx512)
}
