#include <arrow/array.h>
#include <arrow/array/concatenate.h>
#include <arrow/buffer.h>
#include <arrow/csv/api.h>
#include <arrow/io/memory.h>
#include <arrow/table.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/tables/arrow_rows.h"
#include "lockstep/zoo/tables/csv_scan.h"
#include "lockstep/zoo/tables/table_source.h"
#include "lockstep/zoo/tables/text_blocks.h"
#include "lockstep/zoo/tables/text_encoding.h"
