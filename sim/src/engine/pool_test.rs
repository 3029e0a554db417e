use super::*;
use proptest::prelude::*;

fn key(name: u64) -> CacheKey {
    CacheKey { group: 0, name }
}

/// Takes a block and caches `name` in it.
fn store(pool: &mut BlockPool, name: u64) -> BlockId {
    let (id, _) = pool.allocate().expect("a free block");
    pool.cache(id, key(name));
    pool.validate();
    id
}

#[test]
fn the_least_recently_freed_block_is_evicted_first() {
    let mut pool = BlockPool::new(3);
    let ids = [1, 2, 3].map(|name| store(&mut pool, name));
    for id in [ids[1], ids[0], ids[2]] {
        pool.release(id);
    }
    let evicted = [(); 3].map(|()| pool.allocate().and_then(|(_, evicted)| evicted));
    assert_eq!(evicted, [Some(key(2)), Some(key(1)), Some(key(3))]);
    assert_eq!(pool.allocate(), None);
    pool.validate();
}

#[test]
fn a_hit_takes_a_block_out_of_the_free_list() {
    let mut pool = BlockPool::new(2);
    let id = store(&mut pool, 1);
    pool.release(id);
    pool.acquire(id);
    assert_eq!(pool.free_len(), 1);
    pool.acquire(id);
    pool.release(id);
    assert!(!pool.is_free(id), "one user is left");
    pool.release(id);
    assert!(pool.is_free(id));
    pool.validate();
}

#[test]
fn copies_of_one_content_are_counted_and_evicted_one_by_one() {
    let mut pool = BlockPool::new(2);
    let ids = [store(&mut pool, 7), store(&mut pool, 7)];
    assert_eq!(pool.contents(0), BTreeMap::from([(7, 2)]));
    assert_eq!(pool.lookup(key(7)), Some(ids[0]));
    pool.release(ids[0]);
    pool.allocate();
    assert_eq!(pool.contents(0), BTreeMap::from([(7, 1)]));
    assert_eq!(pool.lookup(key(7)), Some(ids[1]));
    pool.validate();
}

#[test]
fn groups_are_apart() {
    let mut pool = BlockPool::new(2);
    store(&mut pool, 1);
    let (id, _) = pool.allocate().expect("a free block");
    pool.cache(id, CacheKey { group: 1, name: 1 });
    assert_eq!(pool.contents(0), BTreeMap::from([(1, 1)]));
    assert_eq!(pool.contents(1), BTreeMap::from([(1, 1)]));
}

#[test]
fn a_reset_needs_an_idle_pool() {
    let mut pool = BlockPool::new(2);
    let id = store(&mut pool, 1);
    assert!(!pool.reset());
    assert_eq!(pool.contents(0).len(), 1);
    pool.release(id);
    assert!(pool.reset());
    assert!(pool.contents(0).is_empty());
    pool.validate();
}

#[derive(Debug, Clone)]
enum Action {
    Allocate(Option<u64>),
    Hit(u64),
    Release(usize),
    Reset,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => proptest::option::weighted(0.8, 0..6_u64).prop_map(Action::Allocate),
        2 => (0..6_u64).prop_map(Action::Hit),
        4 => any::<usize>().prop_map(Action::Release),
        1 => Just(Action::Reset),
    ]
}

proptest! {
    /// Compares the pool with a model of two multisets: users and contents.
    #[test]
    fn users_and_contents_are_those_of_the_model(
        capacity in 1..12_usize,
        actions in proptest::collection::vec(action(), 1..200),
    ) {
        let mut pool = BlockPool::new(capacity);
        let mut users: Vec<BlockId> = Vec::new();
        let mut contents: BTreeMap<u64, u32> = BTreeMap::new();
        for action in actions {
            match action {
                Action::Allocate(name) => match pool.allocate() {
                    Some((id, evicted)) => {
                        prop_assert!(!users.contains(&id), "block {id} was in use");
                        users.push(id);
                        if let Some(key) = evicted {
                            let copies = contents.get_mut(&key.name).expect("an evicted content");
                            *copies -= 1;
                            contents.retain(|_, copies| *copies > 0);
                        }
                        if let Some(name) = name {
                            pool.cache(id, key(name));
                            *contents.entry(name).or_default() += 1;
                        }
                    }
                    None => {
                        let used: std::collections::BTreeSet<_> = users.iter().collect();
                        prop_assert_eq!(used.len(), capacity, "a free block was refused");
                    }
                },
                Action::Hit(name) => {
                    let found = pool.lookup(key(name));
                    prop_assert_eq!(found.is_some(), contents.contains_key(&name));
                    if let Some(id) = found {
                        pool.acquire(id);
                        users.push(id);
                    }
                }
                Action::Release(pick) if !users.is_empty() => {
                    pool.release(users.swap_remove(pick % users.len()));
                }
                Action::Release(_) => {}
                Action::Reset => {
                    prop_assert_eq!(pool.reset(), users.is_empty());
                    if users.is_empty() {
                        contents.clear();
                    }
                }
            }
            pool.validate();
            prop_assert_eq!(&pool.contents(0), &contents);
        }
    }
}
