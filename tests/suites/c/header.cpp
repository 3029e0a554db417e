// The header is C++ too, by itself and twice.

#include "kvasir.h"
#include "kvasir.h"

int main() {
    kvasir_publisher_options options = {};
    options.struct_size = sizeof options;
    kvasir_publisher *publisher = nullptr;
    return kvasir_publisher_open(&options, &publisher) == KVASIR_INVALID_ARGUMENT ? 0 : 1;
}
