//! What a file is, told from its first bytes.
//!
//! A download that went wrong is still a file with the right name. The readers
//! refuse anything without their own magic; this module says what was there
//! instead, so that the message can end with what to do about it.

use std::fmt;

/// How many of a file's first bytes [`sniff`] wants. Fewer are enough only if
/// the file has no more.
pub const SNIFF_BYTES: usize = 512;

/// What a file's first bytes say it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// No bytes at all.
    Empty,
    /// Fewer bytes than any magic needs, and none that say more.
    Short,
    /// A little-endian GGUF file, of whatever version.
    Gguf,
    /// A GGUF file made on, or for, a big-endian machine.
    GgufBigEndian,
    /// The formats that came before GGUF: `ggml`, `ggmf`, `ggjt`, `ggla`.
    LegacyGgml,
    /// A safetensors file: a header length, then a JSON object.
    Safetensors,
    /// The text that stands for a file in a repository that uses Git LFS.
    GitLfsPointer,
    /// A zip archive, which is what `torch.save` writes.
    Zip,
    /// A bare pickle, which is what older `torch.save` and NumPy wrote.
    Pickle,
    /// A gzip stream.
    Gzip,
    /// A zstd frame.
    Zstd,
    /// A web page, or the XML with which an object store reports an error.
    Html,
    /// A JSON document.
    Json,
    /// None of the above.
    Unknown,
}

impl FileKind {
    /// A noun phrase for what the file is.
    pub fn what(self) -> &'static str {
        match self {
            FileKind::Empty => "an empty file",
            FileKind::Short => "a file of a few bytes",
            FileKind::Gguf => "a GGUF file",
            FileKind::GgufBigEndian => "a big-endian GGUF file",
            FileKind::LegacyGgml => "a ggml file from before GGUF",
            FileKind::Safetensors => "a safetensors file",
            FileKind::GitLfsPointer => "a Git LFS pointer, not the file it points to",
            FileKind::Zip => "a zip archive (PyTorch checkpoints are)",
            FileKind::Pickle => "a Python pickle",
            FileKind::Gzip => "a gzip archive",
            FileKind::Zstd => "a zstd archive",
            FileKind::Html => "a web page, most likely an error page saved under this name",
            FileKind::Json => "a JSON document",
            FileKind::Unknown => "a file of unknown format",
        }
    }

    /// What to do about it, for someone who expected weights.
    pub fn advice(self) -> &'static str {
        match self {
            FileKind::Empty | FileKind::Short | FileKind::Unknown => {
                "download it again and compare its size with the published one"
            }
            FileKind::Gguf => "name the .gguf file itself",
            FileKind::GgufBigEndian => {
                "convert it with `gguf_convert_endian.py FILE little`, or download the little-endian file"
            }
            FileKind::LegacyGgml => {
                "convert the original checkpoint again with a current converter"
            }
            FileKind::Safetensors => "name the directory that holds it and its config.json",
            FileKind::GitLfsPointer => {
                "run `git lfs pull` in the repository, or download with `hf download`"
            }
            FileKind::Zip | FileKind::Pickle => {
                "pickles can run code and are never read: use the checkpoint's safetensors files"
            }
            FileKind::Gzip | FileKind::Zstd => "decompress it first",
            FileKind::Html => {
                "download it again: the repository may ask for a login or an accepted licence"
            }
            FileKind::Json => "name the weights' directory, or download the weights again",
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.what())
    }
}

/// What the file that starts with `first` is. `first` is the file's first
/// [`SNIFF_BYTES`] bytes, or all of a smaller file.
pub fn sniff(first: &[u8]) -> FileKind {
    if first.is_empty() {
        return FileKind::Empty;
    }
    if let Some(rest) = first.strip_prefix(b"GGUF") {
        // Converters write the magic the same on both kinds of machine, so the
        // version, a small number, tells the byte order.
        return match rest.first_chunk() {
            Some(version) if is_byte_swapped(u32::from_le_bytes(*version)) => {
                FileKind::GgufBigEndian
            }
            _ => FileKind::Gguf,
        };
    }
    let magics: &[(&[u8], FileKind)] = &[
        (b"FUGG", FileKind::GgufBigEndian),
        (b"lmgg", FileKind::LegacyGgml),
        (b"fmgg", FileKind::LegacyGgml),
        (b"tjgg", FileKind::LegacyGgml),
        (b"algg", FileKind::LegacyGgml),
        (b"version https://git-lfs", FileKind::GitLfsPointer),
        (b"PK\x03\x04", FileKind::Zip),
        (b"PK\x05\x06", FileKind::Zip),
        (b"\x1f\x8b", FileKind::Gzip),
        (b"\x28\xb5\x2f\xfd", FileKind::Zstd),
    ];
    if let Some((_, kind)) = magics.iter().find(|(magic, _)| first.starts_with(magic)) {
        return *kind;
    }
    // A header length comes first in safetensors and may look like anything,
    // so this is asked before the one-byte guesses below.
    if let Some((length, rest)) = first.split_first_chunk::<8>()
        && rest.first() == Some(&b'{')
        && u64::from_le_bytes(*length) < 1 << 32
    {
        return FileKind::Safetensors;
    }
    if let [0x80, 2..=5, ..] = first {
        return FileKind::Pickle;
    }
    sniff_text(first)
}

/// Whether a GGUF version is a small number with its bytes in the wrong order.
pub(crate) fn is_byte_swapped(version: u32) -> bool {
    version & 0xffff == 0 && version != 0
}

fn sniff_text(first: &[u8]) -> FileKind {
    let text = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
    let text = text.trim_ascii_start();
    let starts = |prefix: &[u8]| {
        text.get(..prefix.len())
            .is_some_and(|head| head.eq_ignore_ascii_case(prefix))
    };
    if starts(b"<!doctype") || starts(b"<html") || starts(b"<?xml") || starts(b"<error") {
        FileKind::Html
    } else if text.starts_with(b"{") || text.starts_with(b"[") {
        FileKind::Json
    } else if first.len() < 8 {
        FileKind::Short
    } else {
        FileKind::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_from_its_first_bytes() {
        let cases: &[(&[u8], FileKind)] = &[
            (b"", FileKind::Empty),
            (b"ab", FileKind::Short),
            (b"GGU", FileKind::Short),
            (b"GGUF\x03\0\0\0", FileKind::Gguf),
            (b"GGUF\x01\0\0\0", FileKind::Gguf),
            (b"GGUF", FileKind::Gguf),
            (b"GGUF\0\0\0\x03", FileKind::GgufBigEndian),
            (b"FUGG\0\0\0\x02", FileKind::GgufBigEndian),
            (b"tjgg\x03\0\0\0", FileKind::LegacyGgml),
            (b"\x10\0\0\0\0\0\0\0{\"a\":1}", FileKind::Safetensors),
            // 0x0280 bytes of header: begins as a pickle does.
            (b"\x80\x02\0\0\0\0\0\0{\"a\":1}", FileKind::Safetensors),
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n",
                FileKind::GitLfsPointer,
            ),
            (b"PK\x03\x04\0\0\0\0\x08\x08", FileKind::Zip),
            (b"\x80\x02}q\0X\x06\0\0\0", FileKind::Pickle),
            (b"\x1f\x8b\x08\0", FileKind::Gzip),
            (b"\x28\xb5\x2f\xfd\0\0\0\0", FileKind::Zstd),
            (b"\n  <!DOCTYPE html><html>", FileKind::Html),
            (b"<?xml version=\"1.0\"?><Error>", FileKind::Html),
            (b"\xef\xbb\xbf{\"error\":\"x\"}", FileKind::Json),
            (b"\0\x01\x02\x03\x04\x05\x06\x07\x08", FileKind::Unknown),
        ];
        for (first, kind) in cases {
            assert_eq!(
                sniff(first),
                *kind,
                "{:?}",
                first.escape_ascii().to_string()
            );
        }
    }

    #[test]
    fn advice_fits_into_the_end_of_a_message() {
        for kind in [FileKind::GitLfsPointer, FileKind::Zip, FileKind::Html] {
            for text in [kind.what(), kind.advice()] {
                assert!(!text.ends_with('.') && !text.contains('\n'), "{text}");
            }
        }
    }
}
