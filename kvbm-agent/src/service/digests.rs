use super::outlet::{Outlet, Sent, failed};
use kvasir_feed::feed::Feed;
use kvasir_feed::journal::{DigestError, RankDigests};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{DigestsPart, DigestsQuery};
use kvasir_proto::pb;
use std::sync::Arc;

/// Sends the digests of all ranks of a source, then the last batch that they include. Sends the current incarnation
/// instead if the query names another one.
pub(super) async fn send_digests(
    feed: &Arc<Feed>,
    query: DigestsQuery,
    outlet: &Outlet<pb::GetDigestsResponse>,
) -> Sent {
    // Only one request at a time has copies of the digests.
    let _turn = match feed.digest_turn().await {
        Ok(turn) => turn,
        Err(error) => return outlet.send(Err(failed(error.code(), error))).await,
    };
    let RankDigests { watermark, ranks } = match feed.digests(query.incarnation) {
        Ok(digests) => digests,
        Err(DigestError::WrongIncarnation { present }) => {
            return outlet.send(Ok(DigestsPart::WrongIncarnation { present }.into())).await;
        }
        Err(error @ DigestError::Incomplete) => {
            return outlet.send(Err(failed(ErrorCode::FailedPrecondition, error))).await;
        }
    };
    for (rank, digests) in ranks {
        for (tier, digest) in digests.tiers() {
            let digest = digest.clone();
            outlet.send(Ok(DigestsPart::Tier { rank, tier, digest }.into())).await?;
        }
    }
    outlet.send(Ok(DigestsPart::End { watermark }.into())).await
}
