//! The CPU kernels as a [`Backend`].

use std::io;

use estream_schemas::layout::Layout;
use estream_schemas::program::{RopePairing, RouterForm};

use super::cpu::{
    AttentionForm, Cpu, DEFAULT_EXPERT_ROWS, Expert, Matrix, MatrixError, RopeTable, Route,
    RouterError, Routes, Simd,
};
use super::{Backend, BackendError, ExpertWeights, Weight};
use crate::math::sigmoid;

/// Runs a program on the threads of this machine.
#[derive(Debug)]
pub struct CpuBackend {
    cpu: Cpu,
    expert_rows: usize,
}

impl CpuBackend {
    /// A backend of `threads` threads, the calling one included; 0 counts as 1.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(threads: usize, simd: Simd) -> io::Result<CpuBackend> {
        Ok(CpuBackend {
            cpu: Cpu::new(threads, simd)?,
            expert_rows: DEFAULT_EXPERT_ROWS,
        })
    }

    /// The same with at most `rows` routes of an expert multiplied together (C).
    #[must_use]
    pub fn with_expert_rows(self, rows: usize) -> CpuBackend {
        CpuBackend {
            cpu: self.cpu.with_expert_rows(rows),
            expert_rows: rows.max(1),
        }
    }
}

fn matrix<'a>(weight: &Weight<'a>) -> Result<Matrix<'a>, BackendError> {
    Matrix::new(weight.layout, weight.rows, weight.cols, weight.bytes)
        .map_err(|error| BackendError::Rejected(error.to_string()))
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn threads(&self) -> usize {
        self.cpu.threads()
    }

    fn supports(&self, layout: Layout) -> bool {
        // A matrix of no rows needs no bytes: only its layout can be refused.
        !matches!(
            Matrix::new(layout, 0, 0, &[]),
            Err(MatrixError::Unsupported { .. })
        )
    }

    fn scratch_bytes(&self, ff: usize, cols: usize) -> u64 {
        Cpu::scratch_bytes(self.cpu.threads(), self.expert_rows, ff, cols)
    }

    fn embed(
        &mut self,
        table: &Weight<'_>,
        ids: &[u32],
        scale: f32,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.cpu.embed(&matrix(table)?, ids, scale, out);
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.cpu.rms_norm(x, weight, eps, out);
        Ok(())
    }

    fn qk_norm(&mut self, x: &mut [f32], weight: &[f32], eps: f32) -> Result<(), BackendError> {
        self.cpu.qk_norm(x, weight, eps);
        Ok(())
    }

    fn linear(
        &mut self,
        x: &[f32],
        weight: &Weight<'_>,
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.cpu.linear(x, &matrix(weight)?, out);
        if let Some(bias) = bias {
            self.cpu.add_bias(out, bias);
        }
        Ok(())
    }

    fn rope(
        &mut self,
        x: &mut [f32],
        heads: usize,
        pairing: RopePairing,
        table: &RopeTable,
    ) -> Result<(), BackendError> {
        self.cpu.rope(x, heads, pairing, table);
        Ok(())
    }

    fn attention(
        &mut self,
        form: &AttentionForm,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.cpu.attention(form, q, k, v, out);
        Ok(())
    }

    fn mla(
        &mut self,
        form: &AttentionForm,
        q: &[f32],
        latent: &[f32],
        k_pe: &[f32],
        kv_b: &Weight<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.cpu.mla(form, q, latent, k_pe, &matrix(kv_b)?, out);
        Ok(())
    }

    fn mla_bytes(&self, form: &AttentionForm, positions: usize) -> u64 {
        Cpu::mla_bytes(form, positions)
    }

    fn short_conv(
        &mut self,
        x: &[f32],
        weight: &[f32],
        state: &mut [f32],
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.cpu.short_conv(x, weight, state, out);
        Ok(())
    }

    fn mlp(
        &mut self,
        x: &[f32],
        mlp: &ExpertWeights<'_>,
        token_gate: Option<&Weight<'_>>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let tokens = x.len().checked_div(mlp.gate.cols).unwrap_or(0);
        let mut gates = vec![1.0; tokens];
        if let Some(weight) = token_gate {
            self.cpu.linear(x, &matrix(weight)?, &mut gates);
            gates.iter_mut().for_each(|gate| *gate = sigmoid(*gate));
        }
        // Every token goes to the one expert there is.
        let routes = (0..).zip(gates);
        let routes: Vec<Route> = routes
            .map(|(token, weight)| Route { token, weight })
            .collect();
        self.expert(x, mlp, &routes, out)
    }

    fn router(
        &mut self,
        x: &[f32],
        weight: &Weight<'_>,
        selection_bias: Option<&[f32]>,
        form: &RouterForm,
    ) -> Result<Routes, BackendError> {
        let routes = self.cpu.router(x, &matrix(weight)?, selection_bias, form);
        routes.map_err(|error| match error {
            RouterError::NonFinite { token, expert } => BackendError::NotFinite { token, expert },
            other => BackendError::Rejected(other.to_string()),
        })
    }

    fn expert(
        &mut self,
        x: &[f32],
        expert: &ExpertWeights<'_>,
        routes: &[Route],
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let expert = Expert {
            gate: matrix(&expert.gate)?,
            up: matrix(&expert.up)?,
            down: matrix(&expert.down)?,
        };
        self.cpu.expert(x, &expert, routes, out);
        Ok(())
    }

    fn add(&mut self, x: &[f32], scale: f32, out: &mut [f32]) -> Result<(), BackendError> {
        self.cpu.add_scaled(x, scale, out);
        Ok(())
    }

    fn lm_head(
        &mut self,
        x: &[f32],
        weight: &Weight<'_>,
        scale: f32,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.cpu.linear(x, &matrix(weight)?, out);
        // Multiplying by one changes nothing but time.
        if scale != 1.0 {
            self.cpu.scale(out, scale);
        }
        Ok(())
    }
}
