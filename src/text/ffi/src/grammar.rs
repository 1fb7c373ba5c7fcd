//! Constrained generation through llguidance.

use crate::tokenizer::Tokenizer;
use crate::{entry, invalid, text, Failure, Output};
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use std::sync::Arc;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

fn first_mask(tokenizer: &Tokenizer, end: u32, schema: &str) -> Result<Vec<u32>, Failure> {
    let words: Vec<Vec<u8>> = tokenizer
        .tokens
        .iter()
        .map(|token| match token.special {
            true => [&[TokTrie::SPECIAL_TOKEN_MARKER], token.bytes.as_slice()].concat(),
            false => token.bytes.clone(),
        })
        .collect();
    let info = TokRxInfo::new(words.len() as u32, end);
    let vocabulary: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
    let mut factory = ParserFactory::new_simple(&vocabulary).map_err(invalid)?;
    let grammar = TopLevelGrammar::from_json_schema(serde_json::from_str(schema).map_err(invalid)?);
    let mut matcher = Matcher::new(factory.quiet().create_parser(grammar));
    Ok(matcher.compute_mask().map_err(invalid)?.as_slice().to_vec())
}

/// Writes the mask (u32 words, bit t % 32 of word t / 32 = token t) of tokens that may begin a text which
/// fits the JSON schema.
/// # Safety
/// `tokenizer` is alive; see `slice`.
#[no_mangle]
pub unsafe extern "C" fn spindle_text_schema_first_mask(
    tokenizer: *const Tokenizer, end: u32, data: *const u8, size: usize, output: Output,
) -> i32 {
    entry(output, || {
        let mask = first_mask(&*tokenizer, end, text(data, size, "schema")?)?;
        output.write(&mask.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>());
        Ok(())
    })
}
