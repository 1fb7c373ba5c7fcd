//! Text to ids through tokenizers, and the exact bytes of every token.

use crate::{entry, invalid, slice, text, Code, Failure, Output};
use serde_json::{json, Value};
use tokenizers::models::ModelWrapper;
use tokenizers::tokenizer::normalizer::OffsetReferential;
use tokenizers::tokenizer::{Model, OffsetType, PreTokenizer, Token};
use tokenizers::{AddedVocabulary, Encoding, NormalizedString};

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The added tokens with control tokens left as ordinary text.
    without_special: AddedVocabulary,
    pub tokens: Vec<TokenInfo>,
    strips_leading_space: bool,
}

/// Empty bytes: no token has this id.
#[derive(Clone, Default)]
pub struct TokenInfo {
    pub bytes: Vec<u8>,
    pub special: bool,
}

/// How a decoder turns the text of a token into bytes.
#[derive(Default)]
struct ByteRules {
    byte_level: bool,
    byte_fallback: bool,
    replacements: Vec<(String, String)>,
    strips_leading_space: bool,
}

impl ByteRules {
    fn new(decoder: &Value) -> Result<Self, Failure> {
        let mut rules = ByteRules::default();
        rules.add(decoder)?;
        Ok(rules)
    }

    fn add(&mut self, decoder: &Value) -> Result<(), Failure> {
        let name = decoder["type"].as_str().unwrap_or("none");
        match name {
            "Sequence" => {
                for part in decoder["decoders"].as_array().into_iter().flatten() {
                    self.add(part)?;
                }
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Replace" if decoder["pattern"]["String"].is_string() => self.replacements.push((
                decoder["pattern"]["String"].as_str().unwrap_or_default().to_owned(),
                decoder["content"].as_str().unwrap_or_default().to_owned(),
            )),
            "Metaspace" => {
                let mark = decoder["replacement"].as_str().unwrap_or("\u{2581}").to_owned();
                self.replacements.push((mark, " ".to_owned()));
                self.strips_leading_space |= decoder["prepend_scheme"] != "never";
            }
            "Strip" if decoder["content"] == " " && decoder["start"] == 1 && decoder["stop"] == 0 => {
                self.strips_leading_space = true;
            }
            _ => {
                let message = format!("tokenizer decoder '{name}' is not supported");
                return Err(Failure(Code::Unimplemented, message));
            }
        }
        Ok(())
    }

    fn bytes(&self, token: &str, alphabet: &[Option<u8>]) -> Vec<u8> {
        if self.byte_level {
            let byte = |c: char| alphabet.get(c as usize).copied().flatten();
            return token.chars().map(byte).collect::<Option<_>>().unwrap_or_else(|| token.into());
        }
        let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        if let (true, Some(Ok(byte)), 6) =
            (self.byte_fallback, hex.map(|digits| u8::from_str_radix(digits, 16)), token.len())
        {
            return vec![byte];
        }
        let text = self.replacements.iter().fold(token.to_owned(), |t, (from, to)| t.replace(from, to));
        text.into_bytes()
    }
}

/// The byte that each character of the byte-level alphabet stands for, by code point: printable Latin-1
/// stands for itself, the other bytes follow from U+0100 on in ascending order.
fn byte_alphabet() -> Vec<Option<u8>> {
    let mut alphabet = vec![None; 512];
    let mut next = 256;
    for byte in 0..=255u8 {
        if matches!(byte, 33..=126 | 161..=172 | 174..=255) {
            alphabet[byte as usize] = Some(byte);
        } else {
            alphabet[next] = Some(byte);
            next += 1;
        }
    }
    alphabet
}

impl Tokenizer {
    fn new(definition: &[u8]) -> Result<Self, Failure> {
        let mut inner = tokenizers::Tokenizer::from_bytes(definition).map_err(invalid)?;
        inner.with_truncation(None).map_err(invalid)?.with_padding(None);
        let mut without_special = inner.get_added_vocabulary().clone();
        without_special.set_encode_special_tokens(true);
        let decoder = serde_json::to_value(inner.get_decoder()).map_err(invalid)?;
        let rules = ByteRules::new(&decoder)?;
        let alphabet = byte_alphabet();
        let mut tokens = Vec::new();
        for (token, id) in inner.get_vocab(true) {
            let id = id as usize;
            if id >= MAX_TOKENS {
                return Err(invalid(format!("token id {id} is above {MAX_TOKENS}")));
            }
            if id >= tokens.len() {
                tokens.resize(id + 1, TokenInfo::default());
            }
            tokens[id].bytes = rules.bytes(&token, &alphabet);
        }
        for (id, token) in inner.get_added_tokens_decoder() {
            let bytes = token.content.into_bytes();
            tokens[id as usize] = TokenInfo { bytes, special: token.special };
        }
        let strips_leading_space = rules.strips_leading_space;
        Ok(Tokenizer { inner, without_special, tokens, strips_leading_space })
    }

    fn encode(&self, text: &str, special: bool, guard: Option<char>) -> Result<Vec<u32>, Failure> {
        let added = if special { self.inner.get_added_vocabulary() } else { &self.without_special };
        let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(guard) = guard {
            let keep = |c| c != guard;
            let remove = |piece: &mut NormalizedString| {
                piece.filter(keep);
                Ok(())
            };
            pieces.normalize(remove).map_err(invalid)?;
        }
        if let Some(splitter) = self.inner.get_pre_tokenizer() {
            splitter.pre_tokenize(&mut pieces).map_err(invalid)?;
        }
        self.inner.get_model().tokenize_in_pretokenized(&mut pieces, None).map_err(invalid)?;
        let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        Ok(splits.iter().flat_map(|split| split.2.iter().flatten()).map(|token| token.id).collect())
    }

    /// Ids that the post-processor puts before and after every text.
    fn affixes(&self) -> Result<(Vec<u32>, Vec<u32>), Failure> {
        let probe = Encoding::from_tokens(vec![Token::new(u32::MAX, String::new(), (0, 0))], 0);
        let ids = self.inner.post_process(probe, None, true).map_err(invalid)?.get_ids().to_vec();
        let parts: Vec<_> = ids.split(|id| *id == u32::MAX).map(<[u32]>::to_vec).collect();
        match <[_; 2]>::try_from(parts) {
            Ok([before, after]) => Ok((before, after)),
            Err(_) => Err(invalid("the post-processor must keep the text exactly once")),
        }
    }

    fn describe(&self) -> Result<Value, Failure> {
        let (before, after) = self.affixes()?;
        let kind = match self.inner.get_model() {
            ModelWrapper::BPE(model) if model.byte_fallback => "sentencepiece",
            ModelWrapper::BPE(_) => "bpe",
            ModelWrapper::Unigram(_) => "unigram",
            ModelWrapper::WordPiece(_) => "wordpiece",
            ModelWrapper::WordLevel(_) => "wordlevel",
        };
        Ok(json!({"kind": kind, "before": before, "after": after,
                  "strips_leading_space": self.strips_leading_space}))
    }
}

/// Far above any vocabulary in use; bounds the tables that a damaged file can ask for.
const MAX_TOKENS: usize = 1 << 22;

/// Makes a tokenizer; null on failure.
/// # Safety
/// See `slice`; `code` is writable.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_tokenizer_new(
    data: *const u8, size: usize, output: Output, code: *mut i32,
) -> *mut Tokenizer {
    let mut made = std::ptr::null_mut();
    *code = entry(output, || {
        made = Box::into_raw(Box::new(Tokenizer::new(slice(data, size))?));
        Ok(())
    });
    made
}

/// # Safety
/// `tokenizer` came from `spindle_text_tokenizer_new` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_tokenizer_free(tokenizer: *mut Tokenizer) {
    drop(Box::from_raw(tokenizer));
}

/// Writes a JSON object: kind, ids put before and after a text, strips_leading_space.
/// # Safety
/// `tokenizer` is alive.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_tokenizer_describe(tokenizer: *const Tokenizer, output: Output) -> i32 {
    entry(output, || Ok(output.write((*tokenizer).describe()?.to_string().as_bytes())))
}

/// Writes the vocabulary by ascending id: one flag byte (1 = special), u32 length, bytes.
/// # Safety
/// `tokenizer` is alive.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_tokenizer_tokens(tokenizer: *const Tokenizer, output: Output) -> i32 {
    entry(output, || {
        let mut table = Vec::new();
        for token in &(*tokenizer).tokens {
            table.push(u8::from(token.special));
            table.extend((token.bytes.len() as u32).to_ne_bytes());
            table.extend(&token.bytes);
        }
        output.write(&table);
        Ok(())
    })
}

/// Writes the ids as u32. Control tokens are recognised when `special`; `guard` (0 = none) is a code point
/// that is dropped after they were.
/// # Safety
/// `tokenizer` is alive; see `slice`.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_tokenizer_encode(
    tokenizer: *const Tokenizer, data: *const u8, size: usize, special: bool, guard: u32, output: Output,
) -> i32 {
    entry(output, || {
        let guard = char::from_u32(guard).filter(|c| *c != '\0');
        let ids = (*tokenizer).encode(text(data, size, "text")?, special, guard)?;
        output.write(&ids.iter().flat_map(|id| id.to_ne_bytes()).collect::<Vec<_>>());
        Ok(())
    })
}
