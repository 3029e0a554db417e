use super::*;

/// Payloads as the publishers of vLLM 0.23.0 and 0.33.0 wrote them, but for `extra_keys`: the
/// scripted events had none, the engines themselves state a list with one entry per block. In the
/// map form the publisher also writes the number of entries in three bytes where one does.
const STORED_ARRAY: &str = "93cb41da47c0b0a00000919cab426c6f636b53746f72656491cf39eda1624835a12f\
    c0dc0010cd03e9cd03eacd03ebcd03eccd03edcd03eecd03efcd03f0cd03f1cd03f2cd03f3cd03f4cd03f5cd03f6\
    cd03f7cd03f804c0a3475055c0[91c0]01ae736c6964696e675f77696e646f77cd040000";
const STORED_MAP: &str = "93cb41da47c0b0a00000918ca474797065ab426c6f636b53746f726564ac626c6f636b5f\
    68617368657391cf39eda1624835a12fb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc\
    0010cd03e9cd03eacd03ebcd03eccd03edcd03eecd03efcd03f0cd03f1cd03f2cd03f3cd03f4cd03f5cd03f6cd03\
    f7cd03f8aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65\
    c0[aa65787472615f6b65797391c0]a967726f75705f69647801b26b765f63616368655f737065635f6b696e64ae\
    736c6964696e675f77696e646f77bc6b765f63616368655f737065635f736c6964696e675f77696e646f77cd0400\
    00";
const REMOVED_ARRAY: &str = "93cb41da47c0b0c000009194ac426c6f636b52656d6f76656491cf39eda1624835a12f\
    a34750550100";
const REMOVED_MAP: &str = "93cb41da47c0b0c000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b\
    5f68617368657391cf39eda1624835a12fa66d656469756da3475055a967726f75705f6964780100";
const CLEARED_ARRAY: &str = "93cb41da47c0b10000009191b0416c6c426c6f636b73436c656172656400";
const CLEARED_MAP: &str = "93cb41da47c0b14000009181a474797065b0416c6c426c6f636b73436c656172656400";

const NAME: u64 = 4_174_169_873_132_658_991;

#[track_caller]
fn check(form: WireForm, hashes: HashForm, timestamp: f64, event: EngineEvent, expected: &str) {
    let style = BatchStyle {
        form,
        hashes,
        block_size: 4,
        sliding_window: Some(1_024),
        window_first: false,
        dp_rank: 0,
        copy_counts: false,
    };
    let payload = style.encode(timestamp, &[event]);
    let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected.replace(['[', ']'], ""));
}

/// One block of a window group; its tokens span three more blocks, which are left out.
fn stored() -> EngineEvent {
    EngineEvent::Stored {
        group: 1,
        names: vec![NAME],
        parent: None,
        tokens: (1001..=1016).collect(),
        salt: None,
    }
}

fn removed() -> EngineEvent {
    EngineEvent::Removed { group: 1, name: NAME, remaining: 2 }
}

#[test]
fn payloads_are_those_of_the_engine() {
    use HashForm::Integer;
    check(WireForm::Array, Integer, 1_763_640_002.5, stored(), STORED_ARRAY);
    check(WireForm::Map, Integer, 1_763_640_002.5, stored(), STORED_MAP);
    check(WireForm::Array, Integer, 1_763_640_003.0, removed(), REMOVED_ARRAY);
    check(WireForm::Map, Integer, 1_763_640_003.0, removed(), REMOVED_MAP);
    check(WireForm::Array, Integer, 1_763_640_004.0, EngineEvent::Cleared, CLEARED_ARRAY);
    check(WireForm::Map, Integer, 1_763_640_005.0, EngineEvent::Cleared, CLEARED_MAP);
}

#[test]
fn a_byte_name_ends_in_the_name() {
    let style = BatchStyle {
        form: WireForm::Array,
        hashes: HashForm::Bytes,
        block_size: 4,
        sliding_window: None,
        window_first: false,
        dp_rank: 0,
        copy_counts: false,
    };
    let payload = style.encode(0.0, &[removed()]);
    let name = NAME.to_be_bytes();
    let at = payload.windows(8).position(|window| window == name).expect("the name");
    assert_eq!(payload[at - 26..at - 24], [0xc4, 32], "a byte string of 32 bytes");
}
