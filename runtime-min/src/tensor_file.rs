//! A safetensors file of one f32 matrix, written row by row.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::partial::PartialFile;

/// A file that is complete when [`TensorFile::finish`] returns, and absent before. It
/// replaces nothing.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    partial: PartialFile,
    out: BufWriter<File>,
    rows_left: usize,
    cols: usize,
}

impl TensorFile {
    /// Starts a file whose one tensor `name` has `rows` rows of `cols` elements.
    ///
    /// # Errors
    /// If something is at `path` or its directory cannot be written. All errors of this
    /// type name the path.
    ///
    /// # Panics
    /// If `name` is not made of letters.
    pub fn create(path: &Path, name: &str, rows: usize, cols: usize) -> io::Result<TensorFile> {
        assert!(
            name.bytes().all(|b| b.is_ascii_alphabetic()),
            "a plain name"
        );
        let about = |error: io::Error| named(path, &error);
        let size = |count: usize| rows.checked_mul(count)?.checked_mul(size_of::<f32>());
        let bytes = size(cols).ok_or_else(|| about(io::ErrorKind::FileTooLarge.into()))?;
        let header = header(name, rows, cols, bytes);
        may_have((header.len() as u64).saturating_add(bytes as u64)).map_err(about)?;
        let (partial, file) = PartialFile::beside(path).map_err(about)?;
        let mut file = TensorFile {
            out: BufWriter::with_capacity(1 << 16, file),
            partial,
            path: path.to_owned(),
            rows_left: rows,
            cols,
        };
        file.write(&header)?;
        Ok(file)
    }

    /// Writes the next row.
    ///
    /// # Errors
    /// If the disk is full or fails.
    ///
    /// # Panics
    /// If the row has another length than was stated, or is one too many.
    pub fn row(&mut self, row: &[f32]) -> io::Result<()> {
        assert_eq!(row.len(), self.cols, "a row of the stated width");
        self.rows_left = self.rows_left.checked_sub(1).expect("a row too many");
        let mut bytes = [0; 4096];
        for piece in row.chunks(bytes.len() / size_of::<f32>()) {
            let (quads, _) = bytes.as_chunks_mut();
            for (quad, x) in quads.iter_mut().zip(piece) {
                *quad = x.to_le_bytes();
            }
            self.write(&bytes[..size_of_val(piece)])?;
        }
        Ok(())
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If the disk is full or fails, or the name cannot be given.
    ///
    /// # Panics
    /// If rows are missing.
    pub fn finish(mut self) -> io::Result<()> {
        assert_eq!(self.rows_left, 0, "rows are missing");
        let flushed = self.out.flush();
        let published = flushed.and_then(|()| self.partial.publish());
        published.map_err(|error| named(&self.path, &error))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.out.write_all(bytes);
        written.map_err(|error| named(&self.path, &error))
    }
}

/// Errors if a file may not have so many bytes: the system ends a process that writes more.
pub(crate) fn may_have(bytes: u64) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit.is_some_and(|limit| bytes > limit) {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(()),
    }
}

/// An error that says which file cannot be written, and what to do.
pub(crate) fn named(path: &Path, error: &io::Error) -> io::Error {
    let advice = match error.kind() {
        io::ErrorKind::AlreadyExists => "; name another file, or remove it",
        io::ErrorKind::InvalidFilename => "; name a file",
        _ => "",
    };
    let message = format!("{}: cannot write: {error}{advice}", path.display());
    io::Error::new(error.kind(), message)
}

/// Length and JSON, padded with spaces so that data start at a multiple of 8.
fn header(name: &str, rows: usize, cols: usize, bytes: usize) -> Vec<u8> {
    let mut json = format!(
        r#"{{"{name}":{{"dtype":"F32","shape":[{rows},{cols}],"data_offsets":[0,{bytes}]}}}}"#
    );
    while !json.len().is_multiple_of(8) {
        json.push(' ');
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json.bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn header_and_rows_are_where_the_format_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.safetensors");
        let mut file = TensorFile::create(&path, "logits", 2, 1500).unwrap();
        let rows = [vec![1.5f32; 1500], vec![-0.25; 1500]];
        for row in &rows {
            file.row(row).unwrap();
        }
        file.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
        assert!(length.is_multiple_of(8));
        let json: serde_json::Value = serde_json::from_slice(&rest[..length]).unwrap();
        let tensor = &json["logits"];
        assert_eq!(tensor["dtype"], "F32");
        assert_eq!(tensor["shape"], serde_json::json!([2, 1500]));
        assert_eq!(tensor["data_offsets"], serde_json::json!([0, 12000]));
        let data: Vec<u8> = rows
            .iter()
            .flatten()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        assert_eq!(rest[length..], data);
        assert_eq!(names(dir.path()), ["out.safetensors"]);
    }

    #[test]
    fn an_unfinished_file_leaves_nothing_and_what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut file = TensorFile::create(&path, "logits", 2, 1).unwrap();
        file.row(&[1.0]).unwrap();
        drop(file);
        assert!(names(dir.path()).is_empty());
        std::fs::write(&path, "old").unwrap();
        let error = TensorFile::create(&path, "logits", 2, 1).unwrap_err();
        assert!(error.to_string().contains("name another file"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn a_directory_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let error = TensorFile::create(dir.path(), "logits", 1, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("cannot write"), "{error}");
        assert!(names(dir.path()).is_empty());
    }
}
