use super::chains::Chains;
use kvasir_proto::types::SequenceHash;

fn chain(blocks: &[u64]) -> Vec<SequenceHash> {
    blocks.iter().copied().map(SequenceHash).collect()
}

fn shared(chains: &Chains, blocks: &[u64]) -> [u32; 3] {
    let mut shared = [0; 3];
    chains.count_shared(&chain(blocks), &mut shared);
    shared
}

#[test]
fn what_begins_alike_is_shared() {
    let mut chains = Chains::default();
    let long = chains.insert(0, &chain(&[1, 2, 3, 4]));
    assert_eq!(long.new_blocks, 4);
    let branch = chains.insert(0, &chain(&[1, 2, 5]));
    assert_eq!(branch.new_blocks, 1);
    let short = chains.insert(1, &chain(&[1]));
    assert_eq!((short.new_blocks, chains.blocks()), (1, 5));
    chains.validate();
    assert_eq!(shared(&chains, &[1, 2, 3, 9]), [3, 1, 0]);
    assert_eq!(shared(&chains, &[1, 2, 3, 4, 5]), [4, 1, 0]);
    assert_eq!(shared(&chains, &[2, 3]), [0, 0, 0]);
    for (end, blocks) in [(long, &[1, 2, 3, 4][..]), (branch, &[1, 2, 5]), (short, &[1])] {
        assert_eq!(chains.chain(end.end), chain(blocks));
    }
    assert_eq!(chains.remove(0, long.end), 2, "the other request uses the first two");
    chains.validate();
    assert_eq!(chains.chain(branch.end), chain(&[1, 2, 5]));
    assert_eq!(chains.remove(1, short.end), 1);
    assert_eq!(chains.remove(0, branch.end), 3);
    chains.validate();
    assert_eq!(chains.blocks(), 0);
}

#[test]
fn the_same_chain_counts_once() {
    let mut chains = Chains::default();
    let first = chains.insert(2, &chain(&[7, 8]));
    let second = chains.insert(2, &chain(&[7, 8]));
    assert_eq!((first.end, first.new_blocks), (second.end, 2));
    assert_eq!(second.new_blocks, 0);
    assert_eq!([first, second].map(|at| chains.remove(2, at.end)), [0, 2]);
    assert_eq!(chains.blocks(), 0);
}

#[test]
fn a_chain_without_blocks_is_nothing() {
    let mut chains = Chains::default();
    let nothing = chains.insert(0, &[]);
    assert_eq!((nothing.end, nothing.new_blocks), (None, 0));
    assert_eq!(chains.remove(0, nothing.end), 0);
    assert_eq!(chains.chain(None), []);
    chains.validate();
}

/// Hashes that form no chain come from a broken client. They are counted as a path.
#[test]
fn repeated_hashes_are_a_path_like_others() {
    let mut chains = Chains::default();
    let all = [&[1, 1, 1][..], &[1, 1, 2, 1], &[1]];
    let inserted = all.map(|blocks| chains.insert(0, &chain(blocks)));
    assert_eq!(inserted.map(|at| at.new_blocks), [3, 2, 0]);
    chains.validate();
    assert_eq!(inserted.map(|at| chains.remove(0, at.end)).iter().sum::<u64>(), 5);
    assert_eq!(chains.blocks(), 0);
}
