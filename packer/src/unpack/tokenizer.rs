//! The tokenizer of a bundle as llama.cpp has it: `tokenizer.*` pairs from tokenizer files.

use estream_compiler::arch::TokenizerForm;
use estream_compiler::ingest::Config;
use estream_compiler::ingest::gguf::{GgufBuilder, Value, ValueType, WriteFault};
use estream_runtime::reader::BundleReader;
use estream_schemas::manifest::SourceFormat;
use serde_json::Value as Json;

use super::UnpackError;
use super::sentencepiece;
use super::tokenizer_json::TokenizerJson;
use super::vocabulary::{Token, by_id};

/// A tokenizer file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Special tokens, as configurations and as GGUF call them.
const SPECIAL: [(&str, &str); 5] = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
];

/// The files that a tokenizer is made from, each whole, where it is there.
pub(super) struct Files {
    json: Option<Vec<u8>>,
    model: Option<Vec<u8>>,
    template: Option<Vec<u8>>,
    settings: Result<Option<Config>, String>,
}

impl Files {
    /// Reads those that the bundle carries and compares them with their digests.
    pub(super) fn read(reader: &BundleReader) -> Result<Files, UnpackError> {
        let carried = |name: &str| {
            let name = format!("tokenizer/{name}");
            let mut all = reader.bundle().manifest().tokenizer.iter();
            all.find(|carried| carried.file == name && carried.bytes <= MAX_FILE_BYTES)
        };
        let whole = |name| {
            let Some(carried) = carried(name) else {
                return Ok(None);
            };
            let mut bytes = vec![0; usize::try_from(carried.bytes).unwrap_or(0)];
            reader.read_file(carried, &mut bytes)?;
            Ok::<_, UnpackError>(Some(bytes))
        };
        let settings = match carried("tokenizer_config.json") {
            None => Ok(None),
            Some(carried) => {
                reader.check_file(carried)?;
                let path = reader.path().join(&carried.file);
                let read = Config::carried(&path, SourceFormat::Safetensors);
                read.map(Some).map_err(|error| error.to_string())
            }
        };
        Ok(Files {
            json: whole("tokenizer.json")?,
            model: whole("tokenizer.model")?,
            template: whole("chat_template.jinja")?,
            settings,
        })
    }
}

/// What is written of a tokenizer.
pub(super) struct Tokenizer {
    form: TokenizerForm,
    pre: String,
    tokens: Vec<Token>,
    merges: Vec<String>,
    special: Vec<(&'static str, u32)>,
    flags: Vec<(&'static str, bool)>,
    chat_template: Option<String>,
}

impl Tokenizer {
    /// The tokenizer in `files`, for a model of `count` tokens whose configuration is `config`;
    /// else why there is none.
    pub(super) fn new(
        files: &Files,
        form: TokenizerForm,
        pre: &str,
        config: &Config,
        count: u64,
    ) -> Result<Tokenizer, String> {
        let settings = files.settings.as_ref().map_err(String::clone)?.as_ref();
        let setting = |name: &str| settings.and_then(|settings| settings.get(name));
        let json = files.json.as_deref().map(TokenizerJson::parse).transpose();
        let json = json.map_err(|why| format!("tokenizer.json: {why}"))?;
        let (tokens, merges) = match form {
            TokenizerForm::Gpt2 => {
                let json = json.as_ref().ok_or("there is no tokenizer.json")?;
                let made = json.bpe(count);
                made.map_err(|why| format!("tokenizer.json: {why}"))?
            }
            TokenizerForm::Llama => {
                let model = files.model.as_deref();
                let model = model.ok_or("there is no tokenizer.model")?;
                let tokens = sentencepiece::pieces(model).and_then(|pieces| {
                    let added = setting("added_tokens_decoder");
                    by_id((0..).zip(pieces), added_tokens(added), count)
                });
                let tokens = tokens.map_err(|why| format!("tokenizer.model: {why}"))?;
                (tokens, Vec::new())
            }
        };
        let text = |name: &str| text_of(setting(&format!("{name}_token"))?);
        let id = |(name, key)| {
            let named = text(name).and_then(|text| id_of(&tokens, text));
            let stated = || config.get(&format!("{name}_token_id"))?.as_u64();
            let id = named.or_else(stated).filter(|id| *id < count)?;
            Some((key, u32::try_from(id).ok()?))
        };
        let special = SPECIAL.into_iter().filter_map(id).collect();
        let (first, last) = json.as_ref().map_or((None, None), TokenizerJson::around);
        let flag = |name: &str| setting(name).and_then(Json::as_bool);
        let put = |token: Option<&str>, name| token.map(|token| text(name) == Some(token));
        let flags = [
            ("add_bos_token", flag("add_bos_token").or(put(first, "bos"))),
            ("add_eos_token", flag("add_eos_token").or(put(last, "eos"))),
            (
                "add_space_prefix",
                flag("add_prefix_space").filter(|_| form == TokenizerForm::Llama),
            ),
        ];
        let flags = flags.into_iter();
        let template = setting("chat_template").and_then(template_of);
        Ok(Tokenizer {
            form,
            pre: pre.to_owned(),
            special,
            flags: flags.filter_map(|(key, flag)| Some((key, flag?))).collect(),
            chat_template: template.map(str::to_owned).or_else(|| {
                let text = files.template.clone()?;
                String::from_utf8(text).ok()
            }),
            tokens,
            merges,
        })
    }

    /// Adds its pairs to `builder`.
    pub(super) fn write(&self, builder: &mut GgufBuilder) -> Result<(), WriteFault> {
        fn text(text: &str) -> Value<'_> {
            Value::String(text.as_bytes())
        }
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let model = match self.form {
            TokenizerForm::Gpt2 => "gpt2",
            TokenizerForm::Llama => "llama",
        };
        builder.pair(&key("model"), text(model))?;
        builder.pair(&key("pre"), text(&self.pre))?;
        let tokens = self.tokens.iter();
        let texts = tokens.clone().map(|token| text(&token.text));
        builder.array(&key("tokens"), ValueType::String, texts)?;
        if self.form == TokenizerForm::Llama {
            let scores = tokens.clone().map(|token| Value::F32(token.score));
            builder.array(&key("scores"), ValueType::F32, scores)?;
        }
        let types = tokens.map(|token| Value::I32(token.token_type as i32));
        builder.array(&key("token_type"), ValueType::I32, types)?;
        if self.form == TokenizerForm::Gpt2 {
            let merges = self.merges.iter().map(|merge| text(merge));
            builder.array(&key("merges"), ValueType::String, merges)?;
        }
        for (name, id) in &self.special {
            builder.pair(&key(name), Value::U32(*id))?;
        }
        for (name, flag) in &self.flags {
            builder.pair(&key(name), Value::Bool(*flag))?;
        }
        match &self.chat_template {
            Some(template) => builder.pair("tokenizer.chat_template", text(template)),
            None => Ok(()),
        }
    }
}

/// A special token in a configuration: its text, or an object that has it.
fn text_of(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// A chat template: its text, or the default of several.
fn template_of(template: &Json) -> Option<&str> {
    let named = || {
        let mut all = template.as_array()?.iter();
        let default = all.find(|one| one.get("name").and_then(Json::as_str) == Some("default"));
        default?.get("template")?.as_str()
    };
    template.as_str().or_else(named)
}

fn id_of(tokens: &[Token], text: &str) -> Option<u64> {
    let mut tokens = tokens.iter();
    let id = tokens.position(|token| token.text == text)?;
    u64::try_from(id).ok()
}

/// `added_tokens_decoder`: by id, objects with the text.
fn added_tokens(decoder: Option<&Json>) -> Vec<(u64, Token)> {
    let all = decoder.and_then(Json::as_object).into_iter().flatten();
    all.filter_map(|(id, about)| {
        let is_special = about.get("special").and_then(Json::as_bool);
        let token = Token::added(text_of(about)?, is_special.unwrap_or(false));
        Some((id.parse().ok()?, token))
    })
    .collect()
}
