//! Malformed GGUF files, as data. Each test binary that includes this module
//! has its own `check`, so that a case is held against every property there is.

/// A file that must be refused.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// What the message must contain.
    pub(crate) message: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// A GGUF file put together without any check.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) version: [u8; 4],
    pub(crate) tensor_count: Option<u64>,
    pub(crate) pair_count: Option<u64>,
    pub(crate) pairs: Vec<Vec<u8>>,
    pub(crate) infos: Vec<Vec<u8>>,
    pub(crate) alignment: usize,
    pub(crate) data: Vec<u8>,
}

pub(crate) const U8: u32 = 0;
pub(crate) const U16: u32 = 2;
pub(crate) const U32: u32 = 4;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const F32: u32 = 0;
pub(crate) const I8: u32 = 24;
pub(crate) const Q4_0: u32 = 2;

impl Raw {
    pub(crate) fn new() -> Raw {
        Raw {
            version: 3u32.to_le_bytes(),
            tensor_count: None,
            pair_count: None,
            pairs: Vec::new(),
            infos: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }

    pub(crate) fn pair(mut self, key: &str, value_type: u32, value: &[u8]) -> Raw {
        let mut pair = string(key.as_bytes());
        pair.extend(value_type.to_le_bytes());
        pair.extend(value);
        self.pairs.push(pair);
        self
    }

    pub(crate) fn info(mut self, name: &str, dims: &[u64], dtype: u32, offset: u64) -> Raw {
        let mut info = string(name.as_bytes());
        info.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        info.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        info.extend(dtype.to_le_bytes());
        info.extend(offset.to_le_bytes());
        self.infos.push(info);
        self
    }

    pub(crate) fn data(mut self, bytes: usize) -> Raw {
        self.data = (0..=u8::MAX).cycle().take(bytes).collect();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version);
        let tensors = self.tensor_count.unwrap_or(self.infos.len() as u64);
        let pairs = self.pair_count.unwrap_or(self.pairs.len() as u64);
        out.extend(tensors.to_le_bytes());
        out.extend(pairs.to_le_bytes());
        out.extend(self.pairs.concat());
        out.extend(self.infos.concat());
        if !self.data.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&self.data);
        }
        out
    }
}

pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    out.extend(bytes);
    out
}

pub(crate) fn array(element: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = element.to_le_bytes().to_vec();
    out.extend(count.to_le_bytes());
    out.extend(bytes);
    out
}

/// One of each: what the malformed files are malformations of.
pub(crate) fn valid() -> Raw {
    Raw::new()
        .pair("general.architecture", STRING, &string(b"olmoe"))
        .pair("olmoe.block_count", U32, &2u32.to_le_bytes())
        .pair("flag", BOOL, &[1])
        .pair("list", ARRAY, &array(U16, 2, &[1, 0, 2, 0]))
        .pair(
            "tokenizer.ggml.tokens",
            ARRAY,
            &array(STRING, 2, &[string(b"a"), string(b"bc")].concat()),
        )
        .info("a", &[4, 2], F32, 0)
        .info("b", &[32, 2], Q4_0, 32)
        .info("c", &[3], F32, 96)
        .data(128)
}

/// `valid`, with the tensor `c` replaced.
fn with_last(dims: &[u64], dtype: u32, offset: u64) -> Vec<u8> {
    let mut raw = valid();
    raw.infos.pop();
    raw.info("c", dims, dtype, offset).bytes()
}

/// `valid`, with one more pair.
fn with_pair(key: &str, value_type: u32, value: &[u8]) -> Vec<u8> {
    valid().pair(key, value_type, value).bytes()
}

/// `valid` up to its pairs, and one more pair with which the file ends.
fn with_tail(key: &str, value_type: u32, value: &[u8]) -> Vec<u8> {
    let mut raw = valid().pair(key, value_type, value);
    raw.infos.clear();
    raw.data.clear();
    raw.bytes()
}

fn with_alignment(alignment: u32) -> Vec<u8> {
    with_pair("general.alignment", U32, &alignment.to_le_bytes())
}

/// A header of 24 bytes and nothing else.
fn with_counts(tensors: u64, pairs: u64) -> Vec<u8> {
    let mut raw = Raw::new();
    raw.tensor_count = Some(tensors);
    raw.pair_count = Some(pairs);
    raw.bytes()
}

fn with_version(version: [u8; 4]) -> Vec<u8> {
    let mut raw = valid();
    raw.version = version;
    raw.bytes()
}

fn with_name(name: &[u8]) -> Vec<u8> {
    let mut raw = valid();
    let info = raw.infos[0].split_off(9);
    raw.infos[0] = [string(name), info].concat();
    raw.bytes()
}

fn with_dim_count(count: u32) -> Vec<u8> {
    let mut raw = valid();
    raw.infos[0][9..13].copy_from_slice(&count.to_le_bytes());
    raw.bytes()
}

/// A header of nearly 24 MiB whose very last tensor is wrong.
fn large_then_wrong() -> Vec<u8> {
    let count = (3 << 20) - 16;
    let strings = vec![0; usize::try_from(count).unwrap() * 8];
    let raw = Raw::new().pair("tokens", ARRAY, &array(STRING, count, &strings));
    raw.info("a", &[4], F32, 32 << 10).data(16).bytes()
}

/// As many tensors as are read, all names long, the last one a repetition.
fn many_tensors() -> Vec<u8> {
    let mut raw = Raw::new();
    for number in 0u64..(1 << 16) - 1 {
        raw = raw.info(&format!("{number:0200}"), &[1], F32, number * 32);
    }
    let last = raw.infos.len() as u64 * 32;
    let name = format!("{:0200}", 7);
    raw.info(&name, &[1], F32, last)
        .data((1 << 21) - 28)
        .bytes()
}

/// As many pairs as are read, the last one a repetition.
fn many_pairs() -> Vec<u8> {
    let mut raw = Raw::new();
    for number in 0..(1 << 16) - 1 {
        raw = raw.pair(&format!("{number}"), U8, &[0]);
    }
    raw.pair("7", U8, &[0]).bytes()
}

fn nested_arrays(depth: usize) -> Vec<u8> {
    let mut value = array(U8, 1, &[0]);
    for _ in 0..depth {
        value.splice(0..0, array(ARRAY, 1, &[]));
    }
    with_pair("k", ARRAY, &value)
}

fn truncated(by: usize) -> Vec<u8> {
    let mut bytes = valid().bytes();
    bytes.truncate(bytes.len() - by);
    bytes
}

macro_rules! cases {
    ($($name:ident: $message:literal, $bytes:expr;)*) => {
        mod each {
            use super::*;

            $(#[test]
            fn $name() {
                crate::check(&Case { name: stringify!($name), message: $message, bytes: $bytes });
            })*
        }
    };
}

cases! {
    // Sizes and extents of tensors.
    cve_2026_7482_a_tensor_that_reaches_past_the_end:
        "expected 704 bytes, have 480, likely a partial download", with_last(&[64], F32, 96);
    cve_2026_33298_dimensions_whose_product_wraps:
        "more bytes than can be counted", with_last(&[4_194_305, 4_194_305, 211_106_198_978_564], F32, 96);
    cve_2026_27940_sizes_whose_sum_wraps:
        "more bytes than can be counted",
        Raw::new().info("a", &[1 << 63], I8, 0).info("b", &[1 << 63], I8, 1 << 63).data(32).bytes();
    llama_cpp_18674_a_dimension_whose_stride_wraps:
        "likely a partial download", with_last(&[1152, (1 << 42) + 1], F32, 96);
    candle_3533_two_dimensions_of_2_to_the_33:
        "more bytes than can be counted", with_last(&[1 << 33, 1 << 33], F32, 96);
    ferrox_56_dimensions_that_wrap_to_nothing:
        "more bytes than can be counted", with_last(&[1 << 32, 1 << 32], I8, 96);
    ferrox_56_dimensions_that_wrap_to_four:
        "more bytes than can be counted", with_last(&[(1 << 63) + 2, 2], I8, 96);
    f002_a_tensor_of_no_size_cannot_share_an_offset:
        "\"c\" has the dimensions [0], none may be 0", with_last(&[0], F32, 32);
    c86_a_row_of_half_a_block:
        "rows of 16 elements, q4_0 has blocks of 32", with_last(&[16], Q4_0, 96);
    c86_an_offset_between_two_alignments:
        "starts at byte 100 of the data, not a multiple of 32", with_last(&[3], F32, 100);
    c86_an_offset_near_the_end_of_numbers:
        "before tensor \"c\" belong to no tensor", with_last(&[3], F32, u64::MAX - 31);
    c86_two_tensors_share_bytes:
        "tensor \"c\" starts before \"b\" ends", with_last(&[3], F32, 64);
    c86_two_tensors_share_an_offset:
        "starts before", with_last(&[9], F32, 32);
    c86_bytes_hidden_before_a_tensor:
        "92 bytes before tensor \"c\" belong to no tensor", with_last(&[3], F32, 160);
    c86_bytes_hidden_before_the_first_tensor:
        "64 bytes before tensor \"a\"", Raw::new().info("a", &[1], F32, 64).data(68).bytes();
    c86_bytes_hidden_after_the_last_tensor:
        "84 bytes follow the last tensor", valid().data(192).bytes();
    c86_bytes_hidden_where_there_are_no_tensors:
        "64 bytes follow", Raw::new().data(64).bytes();
    c86_data_cut_short:
        "expected 460 bytes, have 450, likely a partial download; download it again", truncated(30);
    // Numbers of dimensions and types of elements.
    cve_2024_25664_no_dimension: "\"a\" has 0 dimensions", with_dim_count(0);
    cve_2024_25664_five_dimensions: "\"a\" has 5 dimensions", with_dim_count(5);
    llama_cpp_25378_a_number_of_dimensions_with_all_bits_set:
        "has 4294967295 dimensions", with_dim_count(u32::MAX);
    cve_2024_25664_an_element_type_of_ffff: "element type 65535, which this version does not know", with_last(&[3], 0xffff, 96);
    llama_cpp_19856_a_negative_element_type: "element type 4294967295", with_last(&[3], u32::MAX, 96);
    c20_an_element_type_ggml_removed: "element type 31, which ggml has removed", with_last(&[32], 31, 96);
    c20_the_oldest_removed_element_type: "element type 4, which ggml has removed", with_last(&[32], 4, 96);
    // Counts and lengths.
    ferrox_24_half_a_billion_pairs_in_24_bytes:
        "list of pairs at byte 24 takes 7000000000 bytes and 0 remain", with_counts(0, 500_000_000);
    cve_2024_21802_2_to_the_60_pairs: "the list of pairs", with_counts(0, 1 << 60);
    cve_2024_21802_2_to_the_60_tensors: "the list of tensors", with_counts(1 << 60, 0);
    cve_2024_21802_all_bits_of_a_count_set: "the list of pairs", with_counts(u64::MAX, u64::MAX);
    cve_2025_66960_2_to_the_32_items_in_an_array:
        "an array at byte 243 takes 17179869184 bytes and 0 remain",
        with_tail("list", ARRAY, &array(U32, 1 << 32, &[]));
    cve_2025_66960_2_to_the_32_strings_in_an_array:
        "an array of strings", with_tail("list", ARRAY, &array(STRING, 1 << 32, &[]));
    c86_an_array_whose_size_wraps: "takes 18446744073709551615 bytes", with_tail("list", ARRAY, &array(U32, (1 << 62) + 1, &[]));
    ggml_1516_a_gigabyte_of_string_in_a_small_file:
        "a string at byte", with_tail("text", STRING, &(1u64 << 30).to_le_bytes());
    gguf_parser_go_20_a_length_that_is_negative_when_signed:
        "takes 18446744073709551515 bytes", with_tail("text", STRING, &(u64::MAX - 100).to_le_bytes());
    c86_a_string_of_an_array_that_is_too_long:
        "a string of an array", with_tail("list", ARRAY, &array(STRING, 1, &u64::MAX.to_le_bytes()));
    c86_a_header_cut_short: "remain; the file is damaged or only part of it was downloaded", valid().bytes()[..100].to_vec();
    c86_a_header_cut_in_the_tensor_infos: "remain", valid().bytes()[..230].to_vec();
    c86_nothing_after_the_version: "the number of tensors at byte 8 takes 8 bytes and 0 remain", valid().bytes()[..8].to_vec();
    c86_more_pairs_than_any_model_has:
        "declares 65537 pairs, at most 65536", { let mut raw = Raw::new().data(1 << 20); raw.pair_count = Some(65_537); raw.bytes() };
    c86_more_tensors_than_any_model_has:
        "declares 65537 tensors, at most 65536", { let mut raw = Raw::new().data(1 << 22); raw.tensor_count = Some(65_537); raw.bytes() };
    c86_a_header_larger_than_any_vocabulary:
        "the header is larger than 25165824 bytes", with_pair("list", ARRAY, &array(U8, 33 << 20, &vec![0; 33 << 20]));
    c86_a_large_header_that_is_wrong_at_its_end: "32768 bytes before tensor \"a\"", large_then_wrong();
    c86_many_tensors_of_which_one_is_a_repetition: "occurs twice", many_tensors();
    c86_many_pairs_of_which_one_is_a_repetition: "key \"7\" occurs twice", many_pairs();
    // Values.
    llama_cpp_19856_a_key_that_occurs_twice: "key \"flag\" occurs twice", with_pair("flag", BOOL, &[1]);
    llama_cpp_19856_a_tensor_that_occurs_twice:
        "tensor \"b\" occurs twice", valid().info("b", &[3], F32, 128).data(160).bytes();
    llama_cpp_19856_an_alignment_of_zero: "general.alignment is 0 (U32)", with_alignment(0);
    c86_an_alignment_that_is_no_power_of_two: "general.alignment is 48", with_alignment(48);
    c86_an_alignment_below_eight: "general.alignment is 4", with_alignment(4);
    ggml_1516_an_alignment_of_2_to_the_30: "general.alignment is 1073741824", with_alignment(1 << 30);
    ggml_1516_an_alignment_of_another_type:
        "general.alignment is 32 (U16), it must be a u32", with_pair("general.alignment", U16, &32u16.to_le_bytes());
    ggml_1516_an_alignment_that_is_text:
        "general.alignment is a value of type String", with_pair("general.alignment", STRING, &string(b"32"));
    c86_a_value_type_that_does_not_exist: "key \"k\" has value type 13", with_pair("k", 13, &[0; 8]);
    c86_a_negative_value_type: "value type 4294967295", with_pair("k", u32::MAX, &[0; 8]);
    hf_js_2028_an_element_type_that_does_not_exist: "value type 99", with_pair("k", ARRAY, &array(99, 1, &[0; 8]));
    hf_js_2028_an_array_in_an_array: "key \"k\" is an array of arrays", nested_arrays(1);
    hf_js_2028_arrays_ten_thousand_deep: "key \"k\" is an array of arrays", nested_arrays(10_000);
    c86_a_bool_of_two: "key \"k\" holds a bool with the value 2", with_pair("k", BOOL, &[2]);
    c86_a_bool_of_two_in_an_array: "holds a bool with the value 2", with_pair("k", ARRAY, &array(BOOL, 3, &[1, 0, 2]));
    // Names.
    c86_an_empty_key: "key at byte 215 is empty", with_pair("", U8, &[0]);
    c86_a_key_that_is_too_long: "is too long", with_pair(&"k".repeat(257), U8, &[0]);
    c86_an_empty_tensor_name: "tensor name at byte 215 is empty", with_name(b"");
    c86_a_tensor_name_that_is_too_long: "is too long", with_name(&[b'n'; 257]);
    c86_a_tensor_name_that_is_not_utf_8: "is not UTF-8", with_name(b"\xff\xfe");
    c86_a_name_with_an_escape_sequence_is_printed_escaped:
        "tensor \"\\u{1b}[2J\" has 0 dimensions",
        { let mut raw = valid().info("\u{1b}[2J", &[], F32, 96); raw.infos.swap_remove(2); raw.bytes() };
    // Files that are something else.
    c77_a_version_with_its_bytes_swapped:
        "a big-endian GGUF file; convert it with", with_version([0, 0, 0, 3]);
    c77_a_magic_with_its_bytes_swapped: "a big-endian GGUF file", b"FUGG\0\0\0\x03\0\0\0\0".to_vec();
    c86_version_1: "GGUF version 1 is not read, 2 and 3 are; version 1 was replaced", with_version([1, 0, 0, 0]);
    c86_version_0: "GGUF version 0 is not read", with_version([0; 4]);
    c86_a_version_to_come: "version 4 is not read, 2 and 3 are; convert it again, or use a newer estream", with_version([4, 0, 0, 0]);
    c86_a_git_lfs_pointer:
        "not a GGUF file but a Git LFS pointer",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n".to_vec();
    cve_2025_32434_a_pytorch_archive: "pickles can run code and are never read", b"PK\x03\x04\0\0\0\0".to_vec();
    cve_2025_32434_a_pickle: "pickles can run code and are never read", b"\x80\x02}q\0.".to_vec();
    c86_an_error_page: "a web page", b"<!DOCTYPE html><html>Access denied</html>".to_vec();
    c86_an_empty_file: "not a GGUF file but an empty file; download it again", Vec::new();
    c86_a_file_of_three_bytes: "a file of a few bytes", b"GGU".to_vec();
}
