use super::find::Fields;
use super::placement::without_names;
use super::{ConvertError, FindQuery};
use crate::pb;
use crate::types::LocalHash;
use std::mem::take;

/// Takes the prompt out of a request for a worker, and checks it like the prompt of a query, so that both find the same
/// blocks.
///
/// With local hashes, the LoRA adapter is ignored: the hashes already include it.
///
/// # Errors
/// If a field is invalid. The error names it.
pub fn take_prompt(request: &mut pb::SelectWorkerRequest) -> Result<FindQuery, ConvertError> {
    let has_locals = !request.local_hashes.is_empty();
    let fields = Fields {
        model: &request.model,
        tenant: &request.tenant,
        lora_name: if has_locals { "" } else { &request.lora_name },
        cache_salt: &request.cache_salt,
        block_size: request.block_size,
        token_ids: take(&mut request.token_ids),
        token_ids_le: take(&mut request.token_ids_le),
        local_hashes: take(&mut request.local_hashes).into_iter().map(LocalHash).collect(),
        multimodal: take(&mut request.multimodal),
        next_tokens_le: take(&mut request.next_tokens_le),
        wide_token_ids: take(&mut request.wide_token_ids),
        ..Fields::default()
    };
    fields.check().map_err(without_names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::QueryInput;

    #[test]
    fn a_prompt_is_read_as_a_querys() {
        let request = || pb::SelectWorkerRequest {
            model: "m".to_owned(),
            lora_name: "adapter".to_owned(),
            ..Default::default()
        };
        let mut tokens = pb::SelectWorkerRequest { token_ids: vec![1, 2, 3], ..request() };
        let query = take_prompt(&mut tokens).expect("a prompt");
        assert!(matches!(query.input, QueryInput::Tokens { tokens, .. } if tokens.count() == 3));
        let mut hashed = pb::SelectWorkerRequest { local_hashes: vec![7], ..request() };
        let query = take_prompt(&mut hashed).expect("a prompt");
        assert!(matches!(query.input, QueryInput::Locals(locals) if locals == [LocalHash(7)]));
        let next = vec![9, 0, 0, 0].into();
        let mut ahead =
            pb::SelectWorkerRequest { local_hashes: vec![7, 8], next_tokens_le: next, ..request() };
        assert_eq!(take_prompt(&mut ahead).expect("a prompt").next_tokens, Some(vec![9]));
        let mut wide = pb::SelectWorkerRequest { wide_token_ids: vec![1, 1 << 40], ..request() };
        let query = take_prompt(&mut wide).expect("a prompt");
        assert!(matches!(query.input, QueryInput::Tokens { tokens, .. } if tokens.count() == 2));
        let error = take_prompt(&mut request()).expect_err("no prompt");
        let required = "token_ids, token_ids_le, wide_token_ids or local_hashes is required";
        assert_eq!(error.to_string(), required);
    }
}
