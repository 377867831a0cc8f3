//! Numbers that look random and are the same every time.

use half::f16;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.bits()) * u64::from(end)) >> 32) as u32
    }

    /// −1 … 1.
    pub(crate) fn real(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn reals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.real()).collect()
    }

    /// Scales as quantised weights have them, and now and then zero or the least number there is.
    pub(crate) fn scale(&mut self) -> f16 {
        match self.below(64) {
            0 => f16::ZERO,
            1 => f16::from_bits(1),
            2 => f16::from_bits(0x8003),
            _ => f16::from_f32(self.real() * 0.02),
        }
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = (0..count.div_ceil(4)).flat_map(|_| self.bits().to_le_bytes());
        words.take(count).collect()
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let other = self.below(i as u32 + 1) as usize;
            items.swap(i, other);
        }
    }
}
