//! Processes that run the kernels, and the memory they share with tests.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use estream_hexagon::abi::{Buffer, Reply};
use estream_hexagon::message::{MAP_ALIGN, Map};
use estream_hexagon::toolchain::{Machine, Program, QEMU};
use estream_hexagon::wire::Wire;

use crate::tools;

/// Memory of the kernels' own.
pub(crate) const SCRATCH_BYTES: u32 = 1 << 20;

/// A child, spoken to through pipes; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(program: Program, machine: Machine, arguments: &[u32]) -> Process {
        Process::at(&tools::program(program, machine), machine, arguments)
    }

    /// A program that the caller has built for `machine`.
    pub(crate) fn at(path: &Path, machine: Machine, arguments: &[u32]) -> Process {
        let mut command = if machine == Machine::Emulated {
            let mut command = Command::new(QEMU.name);
            command.args(["-cpu", "v67"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        // Threads that nobody waited for are not what is looked for; some tests want races.
        let log = tools::scratch("races").display().to_string();
        let options = format!("report_thread_leaks=0 halt_on_error=1 log_path={log}");
        command.env("TSAN_OPTIONS", options);
        command.args(arguments.iter().map(u32::to_string));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Process(child.expect("the program was just built"))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let mut input = self.0.stdin.as_ref().expect("a pipe");
        input.write_all(bytes).expect("the process reads");
    }

    pub(crate) fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let output = self.0.stdout.as_mut().expect("a pipe");
        output.read_exact(&mut bytes).expect("the process answers");
        bytes
    }

    /// Ends its input, and waits for its exit code.
    pub(crate) fn finish(mut self) -> Option<i32> {
        drop(self.0.stdin.take());
        self.0.wait().expect("a child can be waited for").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It may have ended by itself; then there is nobody to tell.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// `serve`, with buffers: files that both sides see.
#[derive(Debug)]
pub(crate) struct Serve {
    pub(crate) process: Process,
    buffers: Vec<(File, u32)>,
}

impl Serve {
    pub(crate) fn start(machine: Machine, vtcm_bytes: u32) -> Serve {
        Serve {
            process: Process::start(Program::Serve, machine, &[vtcm_bytes, SCRATCH_BYTES]),
            buffers: Vec::new(),
        }
    }

    /// Shares a buffer that begins with `content`, as the next handle.
    pub(crate) fn share(&mut self, content: &[u8]) {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let bytes = (content.len() as u64)
            .next_multiple_of(MAP_ALIGN)
            .max(MAP_ALIGN);
        file.as_file().set_len(bytes).unwrap();
        file.as_file().write_all_at(content, 0).unwrap();
        let handle = self.buffers.len() as u32;
        let message = Map::file(handle, handle, file.path().as_os_str().as_bytes());
        self.process.send(&message.expect("paths here are short"));
        assert_eq!(self.reply().status, 0, "a file of whole pages is mapped");
        let bytes = u32::try_from(bytes).expect("buffers of tests are small");
        self.buffers.push((file.into_file(), bytes));
    }

    pub(crate) fn buffers(&self) -> Vec<Buffer> {
        let buffers = self.buffers.iter().enumerate();
        let buffers = buffers.map(|(handle, (_, bytes))| Buffer {
            handle: handle as u32,
            bytes: *bytes,
        });
        buffers.collect()
    }

    pub(crate) fn write(&self, buffer: usize, offset: u32, content: &[u8]) {
        let file = &self.buffers[buffer].0;
        file.write_all_at(content, u64::from(offset)).unwrap();
    }

    pub(crate) fn read(&self, buffer: usize, offset: u32, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let file = &self.buffers[buffer].0;
        file.read_exact_at(&mut bytes, u64::from(offset)).unwrap();
        bytes
    }

    pub(crate) fn reply(&mut self) -> Reply {
        let bytes = self.process.receive(Reply::BYTES);
        Reply::take(&mut bytes.as_slice()).expect("as many bytes as a reply has")
    }

    pub(crate) fn run(&mut self, message: &[u8]) -> Reply {
        self.process.send(message);
        self.reply()
    }
}

/// What `probe` takes at a time, in whole pairs of vectors.
const INPUT_BYTES: usize = 1 << 20;

/// `probe`.
#[derive(Debug)]
pub(crate) struct Probe(Process);

/// Functions of `c/probe.c`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function {
    HfToSf = 1,
    Sqrt = 3,
    Exp = 4,
    HfMul = 5,
    HfAdd = 6,
    HfFromInt = 7,
    VecExp = 8,
    VecReciprocal = 9,
    VecSilu = 10,
    Decode = 11,
    Multiply = 12,
    Narrow = 13,
    Widen = 14,
    Instructions = 15,
    HfOfSfHash = 16,
}

impl Probe {
    pub(crate) fn start(machine: Machine) -> Probe {
        Probe(Process::start(Program::Probe, machine, &[]))
    }

    pub(crate) fn at(path: &Path, machine: Machine) -> Probe {
        Probe(Process::at(path, machine, &[]))
    }

    pub(crate) fn call(
        &mut self,
        function: Function,
        parameter: u32,
        input: &[u8],
        out_bytes: usize,
    ) -> Vec<u8> {
        let head = [
            function as u32,
            parameter,
            input.len() as u32,
            out_bytes as u32,
        ];
        let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.send(&head);
        self.0.send(input);
        self.0.receive(out_bytes)
    }

    /// A function from binary32 to as many binary32.
    pub(crate) fn reals(&mut self, function: Function, input: &[f32]) -> Vec<f32> {
        let mut out = Vec::new();
        for input in input.chunks(INPUT_BYTES / 4) {
            let bytes: Vec<u8> = input.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.extend(reals(&self.call(function, 0, &bytes, bytes.len())));
        }
        out
    }

    /// A function from vectors of halves to vectors of halves, `ways` of them to one.
    pub(crate) fn halves(&mut self, function: Function, input: &[u16], ways: usize) -> Vec<u16> {
        let mut out = Vec::new();
        for input in input.chunks(INPUT_BYTES / 2) {
            let bytes: Vec<u8> = input.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.extend(halves(&self.call(function, 0, &bytes, bytes.len() / ways)));
        }
        out
    }
}

pub(crate) fn reals(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

pub(crate) fn halves(bytes: &[u8]) -> Vec<u16> {
    let words = bytes.as_chunks::<2>().0.iter();
    words.map(|word| u16::from_le_bytes(*word)).collect()
}
