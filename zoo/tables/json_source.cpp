#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/json/options.h>
#include <arrow/json/reader.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/tables/arrow_rows.h"
#include "lockstep/zoo/tables/json_scan.h"
#include "lockstep/zoo/tables/table_source.h"
#include "lockstep/zoo/tables/text_blocks.h"
#include "lockstep/zoo/tables/text_encoding.h"
